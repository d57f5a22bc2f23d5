//! What goes on, for people and for other programs.

use std::{collections::BTreeMap, fmt::Write};

use serde::{Deserialize, Serialize};

/// One connection of a process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ClientStatus {
    /// Its process number (PID).
    pub process: u32,
    /// What it is called.
    pub name: String,
    /// Granted and not filled yet: lost if the process dies.
    pub granted_bytes: u64,
    /// Filled and not drained: lost if the machine fails.
    pub at_risk_bytes: u64,
    /// Being drained, as a part of these.
    pub draining_bytes: u64,
    /// Filled since it has connected.
    pub filled_total_bytes: u64,
    /// Drained since it has connected.
    pub drained_total_bytes: u64,
    /// Whether it waits for memory.
    pub is_waiting: bool,
}

/// A file of which something is cached.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FileStatus {
    /// Its path when it was opened.
    pub path: String,
    /// Filled and not drained.
    pub at_risk_bytes: u64,
    /// Why it cannot be drained.
    pub error: Option<String>,
    /// The system's number of that error.
    pub errno: Option<u32>,
    /// How often draining it has failed.
    pub failures: u64,
}

/// The state of a daemon.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Status {
    /// Its process number (PID).
    pub process: u32,
    /// How many daemons have served this memory.
    pub generation: u64,
    /// The most memory that it uses.
    pub limit_bytes: u64,
    /// What it uses now.
    pub used_bytes: u64,
    /// What the system has provided, used or not.
    pub touched_bytes: u64,
    /// Filled and not drained: lost if the machine fails.
    pub at_risk_bytes: u64,
    /// Being drained, as a part of these.
    pub draining_bytes: u64,
    /// Drained since the daemon was started.
    pub drained_total_bytes: u64,
    /// Drained per second, recently.
    pub drain_rate: f64,
    /// Records of a dead daemon's journal that made no sense.
    pub damaged_records: u64,
    /// Its clients.
    pub clients: Vec<ClientStatus>,
    /// Files that are not drained.
    pub files: Vec<FileStatus>,
}

impl Status {
    /// Metrics in the text format of Prometheus.
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
            let _ = writeln!(text, "# HELP outcrop_node_{name} {help}\n# TYPE outcrop_node_{name} {kind}");
            for (labels, value) in values {
                let _ = writeln!(text, "outcrop_node_{name}{labels} {value}");
            }
        };
        let plain = |value: u64| [(String::new(), value as f64)];
        metric("limit_bytes", "gauge", "The most memory that is used.", &plain(self.limit_bytes));
        metric("used_bytes", "gauge", "Memory in use.", &plain(self.used_bytes));
        metric("touched_bytes", "gauge", "Memory that the system has provided.", &plain(self.touched_bytes));
        metric("at_risk_bytes", "gauge", "Bytes that are not drained yet.", &plain(self.at_risk_bytes));
        metric("draining_bytes", "gauge", "Bytes that are being drained.", &plain(self.draining_bytes));
        metric("drained_bytes_total", "counter", "Bytes that were drained.", &plain(self.drained_total_bytes));
        let failing = self.files.iter().filter(|file| file.error.is_some()).count() as u64;
        metric("failing_files", "gauge", "Files that cannot be drained.", &plain(failing));
        let failures = self.files.iter().map(|file| file.failures).sum();
        metric("failed_drains", "gauge", "Attempts to drain files that are not drained yet.", &plain(failures));
        metric("daemons_total", "counter", "Daemons that have served this memory.", &plain(self.generation));
        // A process may have several connections, and of each name with its labels there is one.
        let mut processes = BTreeMap::<(u32, &str), Vec<&ClientStatus>>::new();
        for client in &self.clients {
            processes.entry((client.process, &client.name)).or_default().push(client);
        }
        let mut of_clients = |name: &str, kind: &str, help: &str, value: fn(&ClientStatus) -> u64| {
            let labels = |(process, name): &(u32, &str)| format!("{{pid=\"{process}\",name=\"{}\"}}", escaped(name));
            let sum = |clients: &[&ClientStatus]| clients.iter().map(|client| value(client)).sum::<u64>() as f64;
            let values: Vec<_> = processes.iter().map(|(key, clients)| (labels(key), sum(clients))).collect();
            metric(name, kind, help, &values);
        };
        of_clients("client_granted_bytes", "gauge", "Memory that a client may fill.", |it| it.granted_bytes);
        of_clients("client_at_risk_bytes", "gauge", "Bytes of a client that are not drained yet.", |it| {
            it.at_risk_bytes
        });
        of_clients("client_filled_bytes_total", "counter", "Bytes that a client has filled.", |it| {
            it.filled_total_bytes
        });
        of_clients("client_drained_bytes_total", "counter", "Bytes of a client that were drained.", |it| {
            it.drained_total_bytes
        });
        of_clients("client_waiting", "gauge", "Connections of a client that wait for memory.", |it| {
            u64::from(it.is_waiting)
        });
        text
    }
}

/// A value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_name_every_client_and_count_failing_files() {
        let client = ClientStatus { process: 7, name: "a\"b".to_owned(), granted_bytes: 5, ..ClientStatus::default() };
        let failing = FileStatus { error: Some("no space".to_owned()), ..FileStatus::default() };
        let files = vec![failing, FileStatus::default()];
        let clients = vec![client.clone(), ClientStatus { granted_bytes: 2, is_waiting: true, ..client }];
        let status = Status { limit_bytes: 100, clients, files, ..Status::default() };
        let text = status.prometheus();
        for line in [
            "outcrop_node_limit_bytes 100",
            "outcrop_node_client_granted_bytes{pid=\"7\",name=\"a\\\"b\"} 7",
            "outcrop_node_client_waiting{pid=\"7\",name=\"a\\\"b\"} 1",
            "outcrop_node_failing_files 1",
            "# TYPE outcrop_node_drained_bytes_total counter",
        ] {
            let count = text.lines().filter(|found| *found == line).count();
            assert_eq!(count, 1, "{line} is there once in\n{text}");
        }
    }
}
