//! Valid machines are accepted, and invalid ones are refused by name.

use outcrop_sim::{Machine, PlainRates};

const SMALL: &str = include_str!("../../machines/shaheen-2.toml");

fn refusal(text: &str) -> String {
    Machine::parse("test.toml", text).unwrap_err().to_string()
}

#[test]
fn all_built_in_machines_are_sound() {
    let names: Vec<_> = Machine::names().collect();
    assert_eq!(names, ["dgx-a100", "summit", "shaheen-2", "titan"]);
    for name in names {
        assert_eq!(Machine::named(name).unwrap().name, name);
    }
    assert!(Machine::named("nowhere").unwrap_err().to_string().contains("summit"));
}

#[test]
fn a_rate_must_be_a_positive_number() {
    for nonsense in ["0.0", "-3e9", "inf", "-inf", "nan", "1e-5", "1e-300", "1e30", "1e308"] {
        let text = SMALL.replace("touched_bytes_per_second = 45e9", &format!("touched_bytes_per_second = {nonsense}"));
        let message = refusal(&text);
        assert!(message.contains("host.touched_bytes_per_second"), "{message}");
        let text =
            SMALL.replace("node_read_bytes_per_second = 1.5e9", &format!("node_read_bytes_per_second = {nonsense}"));
        let message = refusal(&text);
        assert!(message.contains("storage.file-system.node_read_bytes_per_second"), "{message}");
    }
}

#[test]
fn a_count_or_capacity_must_not_be_zero() {
    let message = refusal(&SMALL.replace("processes_per_node = 1 ", "processes_per_node = 0 "));
    assert!(message.contains("processes_per_node = 0"), "{message}");
    let message = refusal(&SMALL.replace("node_capacity_bytes = 800_000_000_000", "node_capacity_bytes = 0"));
    assert!(message.contains("storage.burst-buffer.node_capacity_bytes"), "{message}");
    let message = refusal(&SMALL.replace("memory_bytes = 137_438_953_472", "memory_bytes = -1"));
    assert!(message.contains("memory_bytes"), "{message}");
}

#[test]
fn what_would_take_for_ever_or_cannot_be_counted_is_refused() {
    const LARGE: &str = include_str!("../../machines/dgx-a100.toml");
    for (key, value) in [
        ("name", "\"\""),
        ("processes_per_node", "4294967295"),
        ("device.map_piece_bytes", "1"),
        ("device.map_piece_bytes", "9223372036854775807"),
        ("device.memory_bytes", "9223372036854775807"),
        ("device.processes_per_link", "0"),
        ("device.paging_bytes_per_second", "1e-5"),
        ("host.processes_per_domain", "4294967295"),
        ("host.touch_threads", "4294967295"),
        ("host.touch_traffic", "1e30"),
        ("host.copy_traffic", "1e-300"),
        ("storage.nvme.latency_ns", "9223372036854775807"),
    ] {
        let (line, table) = (key.rsplit('.').next().unwrap(), key.split('.').next().unwrap());
        let start = if table == key { 0 } else { LARGE.find(&format!("[{table}]")).unwrap() };
        let at = start + LARGE[start..].find(&format!("\n{line} = ")).unwrap() + 1;
        let end = at + LARGE[at..].find('\n').unwrap();
        let message = refusal(&format!("{}{line} = {value}{}", &LARGE[..at], &LARGE[end..]));
        assert!(message.contains(&format!("{key} = ")), "{message}");
        assert!(message.contains("must be") || message.contains("needs a name"), "{message}");
    }
}

#[test]
fn unknown_and_missing_keys_are_named() {
    let message = refusal(&format!("colour = 'red'\n{SMALL}"));
    assert!(message.contains("colour") && message.contains("test.toml"), "{message}");
    let message = refusal("name = 'bare'\nprocesses_per_node = 1");
    assert!(message.contains("host"), "{message}");
    let message = refusal("this is not TOML");
    assert!(message.contains("test.toml"), "{message}");
}

#[test]
fn storages_need_names_of_their_own() {
    let message = refusal(&SMALL.replace("name = \"file-system\"", "name = \"burst-buffer\""));
    assert!(message.contains("storage.1.name"), "{message}");
}

#[test]
fn a_machine_can_be_made_from_plain_numbers() {
    let rates = PlainRates {
        copy_untouched: 4e9,
        copy_touched: 14e9,
        touch: 11e9,
        pin: 100e9,
        directory_write: 2e9,
        directory_read: 3e9,
    };
    let machine = Machine::plain("here", rates, 8 << 30, 64 << 30).unwrap();
    let text = toml::to_string(&machine).unwrap();
    assert_eq!(Machine::parse("here.toml", &text).unwrap(), machine, "it can be written and read again");
    let broken = PlainRates { directory_write: 0.0, ..rates };
    let message = Machine::plain("here", broken, 8 << 30, 64 << 30).unwrap_err().to_string();
    assert!(message.contains("storage.directory.write_bytes_per_second"), "{message}");
}
