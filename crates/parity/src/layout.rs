//! Groups: which ranks keep the shards of which rank.

use std::collections::BTreeMap;

use crate::Code;

/// There are too few failure domains for a group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "parity {code} needs {} failure domains (nodes), and the ranks are on {found}: {}; use more nodes, a smaller code such as \
     \"{}\", or say with parity_domain what fails together",
    code.nodes(), names.join(", "), smaller(*found, *code)
)]
pub struct TooFew {
    /// The code.
    pub code: Code,
    /// How many failure domains there are.
    pub found: usize,
    /// The names of some of them.
    pub names: Vec<String>,
}

/// A code for so few nodes.
fn smaller(nodes: usize, code: Code) -> String {
    match nodes.checked_sub(usize::from(code.lost())).filter(|data| *data > 0) {
        Some(data) => format!("{data}+{}", code.lost()),
        None if nodes > 1 => "1+1".to_owned(),
        None => "none".to_owned(),
    }
}

/// How many names a message has.
const NAMES_MAX: usize = 8;

/// For each rank, the ranks that keep its shards, by the index of the shard. `domains` has the
/// failure domain of each rank.
///
/// The domains, in the order of their names, are dealt out to as many groups as possible, in turn.
/// So neighbours, which may share a rack, are in different groups. The first shard of a rank stays
/// with it, and the others go to the domains that follow its own in its group. All ranks compute
/// the same.
pub fn holders(domains: &[String], code: Code) -> Result<Vec<Vec<u32>>, TooFew> {
    let mut ranks: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (rank, domain) in (0..).zip(domains) {
        ranks.entry(domain).or_default().push(rank);
    }
    let groups = ranks.len() / usize::from(code.nodes());
    if groups == 0 {
        let names = ranks.keys().take(NAMES_MAX).map(|name| (*name).to_owned()).collect();
        return Err(TooFew { code, found: ranks.len(), names });
    }
    let mut holders = vec![Vec::new(); domains.len()];
    for group in 0..groups {
        let members: Vec<&Vec<u32>> = ranks.values().skip(group).step_by(groups).collect();
        for (at, own) in members.iter().enumerate() {
            for (nth, rank) in own.iter().enumerate() {
                let holder = |shard: usize| {
                    let there = members[(at + shard) % members.len()];
                    there[nth % there.len()]
                };
                holders[*rank as usize] = (0..usize::from(code.shards())).map(holder).collect();
            }
        }
    }
    Ok(holders)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(domains: &[u8]) -> Vec<String> {
        domains.iter().map(|number| format!("node-{number}")).collect()
    }

    proptest! {
        #[test]
        fn shards_are_on_other_nodes_of_one_group(
            domains in prop::collection::vec(0u8..20, 1..60), data in 1u16..6, lost in 1u16..4,
        ) {
            let code = Code::new(data, lost).unwrap();
            let names = named(&domains);
            let mut different = domains.clone();
            different.sort_unstable();
            different.dedup();
            match holders(&names, code) {
                Err(problem) => {
                    prop_assert!(different.len() < usize::from(code.nodes()));
                    prop_assert_eq!(problem.found, different.len());
                }
                Ok(holders) => {
                    for (own, keep) in domains.iter().zip(&holders) {
                        let mut there: Vec<u8> = keep.iter().map(|rank| domains[*rank as usize]).collect();
                        prop_assert_eq!(there[0], *own);
                        there.sort_unstable();
                        there.dedup();
                        prop_assert_eq!(there.len(), usize::from(code.nodes()), "each is on a node of its own");
                    }
                }
            }
        }

        #[test]
        fn any_lost_nodes_of_a_group_leave_enough(
            nodes in 2u8..14, per_node in 1u8..4, data in 1u16..5, lost in 1u16..4, seed in any::<u64>(),
        ) {
            let code = Code::new(data, lost).unwrap();
            let domains: Vec<u8> = (0..nodes * per_node).map(|rank| rank / per_node).collect();
            let Ok(holders) = holders(&named(&domains), code) else { return Ok(()) };
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut gone: Vec<u8> = (0..nodes).collect();
            rng.shuffle(&mut gone);
            gone.truncate(lost.into());
            for keep in &holders {
                let left = keep.iter().filter(|rank| !gone.contains(&domains[**rank as usize])).count();
                prop_assert!(left >= usize::from(data));
            }
        }

        #[test]
        fn nodes_with_as_many_ranks_keep_as_many_shards(nodes in 2u8..14, per_node in 1u8..5) {
            let code = Code::new(1, 1).unwrap();
            let domains: Vec<u8> = (0..nodes * per_node).map(|rank| rank / per_node).collect();
            let mut kept = vec![0; domains.len()];
            holders(&named(&domains), code).unwrap().iter().flatten().for_each(|rank| kept[*rank as usize] += 1);
            prop_assert!(kept.iter().all(|count| *count == 2), "{:?}", kept);
        }
    }

    #[test]
    fn too_few_nodes_are_an_error_that_says_what_would_do() {
        let code = Code::new(4, 2).unwrap();
        let problem = holders(&named(&[0, 1, 2, 3, 0]), code).unwrap_err().to_string();
        assert!(problem.contains("needs 6") && problem.contains("on 4") && problem.contains("\"2+2\""), "{problem}");
        let problem = holders(&named(&[3, 3, 3]), Code::new(1, 1).unwrap()).unwrap_err().to_string();
        assert!(problem.contains("on 1: node-3") && problem.contains("\"none\""), "{problem}");
    }
}
