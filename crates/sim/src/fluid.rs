//! Bandwidth as a fluid: flows share the resources that they cross, fairly.
//!
//! A flow moves bytes through resources: a link, the memory of a socket, a lock in a driver, a
//! parallel file system. A byte may cost more on one resource than on another (a copy through a
//! bounce buffer crosses memory more than once). Between two changes all rates are constant, so the
//! next end is known exactly. At every start and end, the rates are computed again.

use smallvec::SmallVec;

/// A resource with a limited throughput.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResourceId(usize);

/// The demand of a new flow.
#[derive(Debug, Clone)]
pub(crate) struct Demand {
    /// Its owner. All flows of an owner can be paused together.
    pub(crate) owner: usize,
    pub(crate) bytes: u64,
    /// The maximum rate, in bytes per second.
    pub(crate) rate_max: f64,
    /// The resources that it crosses, with the cost of a byte there.
    pub(crate) crosses: SmallVec<[(ResourceId, f64); 4]>,
    /// Its weight: it gets this many equal shares where others get one.
    pub(crate) parts: f64,
    /// Whether it continues while its owner is paused.
    pub(crate) is_unstoppable: bool,
}

impl Demand {
    pub(crate) fn new(owner: usize, bytes: u64, rate_max: f64) -> Self {
        Self { owner, bytes, rate_max, crosses: SmallVec::new(), parts: 1.0, is_unstoppable: false }
    }

    pub(crate) fn crossing(mut self, resource: ResourceId, cost_per_byte: f64) -> Self {
        self.crosses.push((resource, cost_per_byte));
        self
    }

    pub(crate) fn with_parts(self, parts: f64) -> Self {
        Self { parts, ..self }
    }

    pub(crate) fn unstoppable(self) -> Self {
        Self { is_unstoppable: true, ..self }
    }
}

#[derive(Debug)]
struct Flow<T> {
    demand: Demand,
    left_bytes: f64,
    /// Bytes per nanosecond.
    rate: f64,
    ends_ns: Option<u64>,
    task: T,
}

/// All resources and their flows. `T` identifies the purpose of a flow.
#[derive(Debug)]
pub(crate) struct Network<T> {
    /// Units per nanosecond.
    capacities: Vec<f64>,
    flows: Vec<Flow<T>>,
    paused: Vec<usize>,
    now_ns: u64,
    is_stale: bool,
}

impl<T> Network<T> {
    pub(crate) fn new() -> Self {
        Self { capacities: Vec::new(), flows: Vec::new(), paused: Vec::new(), now_ns: 0, is_stale: false }
    }

    pub(crate) fn add_resource(&mut self, units_per_second: f64) -> ResourceId {
        self.capacities.push(units_per_second / 1e9);
        ResourceId(self.capacities.len() - 1)
    }

    pub(crate) fn start(&mut self, demand: Demand, task: T) {
        let left_bytes = demand.bytes as f64;
        self.flows.push(Flow { demand, left_bytes, rate: 0.0, ends_ns: None, task });
        self.is_stale = true;
    }

    /// Stops all flows of an owner, including later ones, except the unstoppable ones.
    pub(crate) fn pause(&mut self, owner: usize) {
        self.paused.push(owner);
        self.is_stale = true;
    }

    pub(crate) fn resume(&mut self, owner: usize) {
        self.paused.retain(|&paused| paused != owner);
        self.is_stale = true;
    }

    /// When the next flow ends, if any does.
    pub(crate) fn next_end_ns(&mut self) -> Option<u64> {
        if self.is_stale {
            self.share_out();
        }
        self.flows.iter().filter_map(|flow| flow.ends_ns).min()
    }

    /// Advances the time to `now_ns`, which must not be after the next end.
    pub(crate) fn advance(&mut self, now_ns: u64) {
        if self.is_stale {
            self.share_out();
        }
        let elapsed = (now_ns - self.now_ns) as f64;
        if elapsed > 0.0 {
            for flow in &mut self.flows {
                flow.left_bytes = (flow.left_bytes - flow.rate * elapsed).max(0.0);
            }
        }
        self.now_ns = now_ns;
    }

    /// Returns a flow that has ended by now, the oldest first.
    pub(crate) fn take_ended(&mut self) -> Option<T> {
        let now_ns = self.now_ns;
        let index = self.flows.iter().position(|flow| flow.ends_ns.is_some_and(|end| end <= now_ns))?;
        self.is_stale = true;
        Some(self.flows.remove(index).task)
    }

    /// Assigns rates (max-min fairness): the most constrained flow first; the others share what is
    /// left.
    fn share_out(&mut self) {
        self.is_stale = false;
        let mut left = self.capacities.clone();
        let mut parts = vec![0.0; left.len()];
        let mut open: Vec<usize> = Vec::with_capacity(self.flows.len());
        for (index, flow) in self.flows.iter_mut().enumerate() {
            flow.rate = 0.0;
            if flow.demand.is_unstoppable || !self.paused.contains(&flow.demand.owner) {
                open.push(index);
                flow.demand.crosses.iter().for_each(|&(ResourceId(at), _)| parts[at] += flow.demand.parts);
            }
        }
        while !open.is_empty() {
            let bound = |flow: &Flow<T>| {
                let share = |&(ResourceId(at), cost): &(ResourceId, f64)| {
                    (left[at].max(0.0) * flow.demand.parts / parts[at]) / cost
                };
                flow.demand.crosses.iter().map(share).fold(flow.demand.rate_max / 1e9, f64::min)
            };
            let bounds: Vec<f64> = open.iter().map(|&index| bound(&self.flows[index])).collect();
            let least = bounds.iter().copied().fold(f64::INFINITY, f64::min);
            // Handle equal flows together. The tolerance covers rounding errors.
            let mut still_open = Vec::with_capacity(open.len());
            for (&index, &bound) in open.iter().zip(&bounds) {
                let flow = &mut self.flows[index];
                if bound > least * (1.0 + 1e-9) {
                    still_open.push(index);
                    continue;
                }
                flow.rate = bound;
                for &(ResourceId(at), cost) in &flow.demand.crosses {
                    left[at] -= bound * cost;
                    parts[at] -= flow.demand.parts;
                }
            }
            open = still_open;
        }
        for flow in &mut self.flows {
            let duration = if flow.left_bytes <= 0.0 { 0.0 } else { (flow.left_bytes / flow.rate).ceil() };
            flow.ends_ns = duration.is_finite().then(|| self.now_ns + duration as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(network: &mut Network<&'static str>) -> Vec<(u64, &'static str)> {
        let mut all = Vec::new();
        while let Some(end) = network.next_end_ns() {
            network.advance(end);
            while let Some(task) = network.take_ended() {
                all.push((end, task));
            }
        }
        all
    }

    #[test]
    fn a_lone_flow_has_its_own_limit_or_that_of_what_it_crosses() {
        let mut network = Network::new();
        let link = network.add_resource(10e9);
        network.start(Demand::new(0, 1000, 5e9).crossing(link, 1.0), "slow by itself");
        assert_eq!(ends(&mut network), [(200, "slow by itself")]);
        network.start(Demand::new(0, 1000, 50e9).crossing(link, 2.0), "crosses twice");
        assert_eq!(ends(&mut network), [(400, "crosses twice")]);
    }

    #[test]
    fn sharing_is_max_min_fair() {
        // One link is shared by all three flows, the other is used by only one of them.
        let mut network = Network::new();
        let (wide, narrow) = (network.add_resource(12e9), network.add_resource(2e9));
        network.start(Demand::new(0, 2000, 99e9).crossing(wide, 1.0).crossing(narrow, 1.0), "narrow");
        network.start(Demand::new(1, 5000, 99e9).crossing(wide, 1.0), "wide");
        network.start(Demand::new(2, 5000, 99e9).crossing(wide, 1.0), "wide too");
        // The narrow flow gets 2, the others share the remaining 10, and nobody could get more.
        assert_eq!(ends(&mut network), [(1000, "narrow"), (1000, "wide"), (1000, "wide too")]);
    }

    #[test]
    fn what_ends_leaves_its_share_to_the_others() {
        let mut network = Network::new();
        let link = network.add_resource(10e9);
        network.start(Demand::new(0, 1000, 99e9).crossing(link, 1.0), "short");
        network.start(Demand::new(1, 3000, 99e9).crossing(link, 1.0), "long");
        assert_eq!(ends(&mut network), [(200, "short"), (400, "long")]);
    }

    #[test]
    fn several_threads_get_several_parts() {
        let mut network = Network::new();
        let memory = network.add_resource(9e9);
        network.start(Demand::new(0, 6000, 99e9).crossing(memory, 1.0).with_parts(2.0), "two threads");
        network.start(Demand::new(1, 3000, 99e9).crossing(memory, 1.0), "one thread");
        assert_eq!(ends(&mut network), [(1000, "two threads"), (1000, "one thread")]);
    }

    #[test]
    fn who_is_paused_waits_and_leaves_its_share() {
        let mut network = Network::new();
        let link = network.add_resource(10e9);
        network.start(Demand::new(0, 1000, 99e9).crossing(link, 1.0), "paused");
        network.start(Demand::new(1, 1000, 99e9).crossing(link, 1.0), "free");
        network.start(Demand::new(0, 1000, 5e9).unstoppable(), "the reason");
        network.pause(0);
        assert_eq!(network.next_end_ns(), Some(100));
        network.advance(100);
        assert_eq!((network.take_ended(), network.next_end_ns()), (Some("free"), Some(200)));
        network.advance(200);
        assert_eq!((network.take_ended(), network.next_end_ns()), (Some("the reason"), None));
        network.resume(0);
        assert_eq!(ends(&mut network), [(300, "paused")]);
    }
}
