//! What cannot be: too few nodes, more of them lost than parity covers, damaged shards, strangers.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    sync::Mutex,
};

use outcrop::{ErrorKind, Reached, Store, store::Code};

use super::{LOOPBACK, Machine, contents, has_version, restore, run, save, save_all};

#[test]
fn a_group_larger_than_the_nodes_is_an_error_that_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(dir.path(), 3, (4, 1));
    for found in machine.run(|_, builder| builder.open().err().unwrap()) {
        assert_eq!(found.kind(), ErrorKind::Usage);
        let text = found.to_string();
        assert!(text.contains("needs 5 failure domains") && text.contains("\"2+1\""), "{text}");
    }
    // All ranks are on one node.
    let mut machine = Machine::new(dir.path(), 3, (1, 1));
    machine.nodes = vec!["node-0".to_owned(); 3];
    for found in machine.run(|_, builder| builder.open().err().unwrap().to_string()) {
        assert!(found.contains("the ranks are on 1: node-0") && found.contains("parity_domain"), "{found}");
    }
    let alone = Store::builder().dir(dir.path().join("alone"), None).parity(Code::new(1, 1).unwrap()).open();
    assert!(alone.err().unwrap().to_string().contains("on 1: "));
    assert!(contents(dir.path()).keys().all(|path| path.starts_with(dir.path().join("talk"))), "nothing was changed");
}

#[test]
fn all_ranks_need_the_same_code() {
    let dir = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(dir.path(), 3, (1, 1));
    let found = machine.run(|rank, builder| {
        let code = Code::new(1 + u16::from(rank == 2), 1).unwrap();
        builder.parity(code).open().err().unwrap().to_string()
    });
    assert!(found[0].contains("parity is 1+1 here and 2+1 on rank 2"), "{found:?}");
    assert!(found[2].contains("parity is 2+1 here and 1+1 on rank 0"), "{found:?}");
}

#[test]
fn codes_that_protect_nothing_are_refused() {
    for (text, problem) in [
        ("parity = \"4+0\"", "at least 1"),
        ("parity = \"0+1\"", "at least 1"),
        ("parity = \"4\"", "two numbers such as"),
        ("parity = \"partner\"\ndedup = \"ranks\"", "leave out one of them"),
        ("parity = \"1+1\"\nparity_network = \"eth0\"", "an IP address"),
    ] {
        let found = outcrop::StoreBuilder::from_toml(&format!("dir = \"x\"\n{text}"));
        let found = found.and_then(|builder| builder.open().map(drop)).err().unwrap().to_string();
        assert!(found.contains(problem), "{text}: {found}");
    }
    assert!(Path::new("x").symlink_metadata().is_err(), "nothing was made");
}

#[test]
fn more_lost_nodes_than_parity_covers_are_an_error_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(&dir.path().join("a"), 4, (2, 1));
    machine.run(|rank, builder| save_all(builder, rank, 1..=3));
    let kept = dir.path().join("kept");
    let whole = machine.copy(&kept);
    machine.lose(&[1, 2]);
    let left = |machine: &Machine| {
        let of = |rank| contents(&machine.dir(rank).join(format!("heat/rank-{rank:05}")));
        [of(0), of(3)].map(|files| files.into_iter().filter(|(path, _)| !path.ends_with("runs")).collect::<Vec<_>>())
    };
    let before = left(&machine);
    let found = machine.run(|rank, builder| {
        let mut session = builder.open().unwrap().session("heat").unwrap();
        restore(&mut session, rank).unwrap_err()
    });
    for error in &found {
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    }
    let text = found[1].to_string();
    assert!(text.contains("more nodes are lost than parity covers; bring one of them back"), "{text}");
    assert!(found[0].to_string().contains("damaged on rank 1"), "{}", found[0]);
    assert!(before == left(&machine), "nothing was changed");
    // One of them comes back.
    machine.nodes[1] = whole.nodes[1].clone();
    super::copy_tree(&whole.dir(1), &machine.dir(1));
    let restored = machine.run(|rank, builder| {
        let mut session = builder.open().unwrap().session("heat").unwrap();
        restore(&mut session, rank).unwrap().unwrap().version
    });
    assert_eq!(restored, [3; 4]);
}

/// The shards of a rank's packs on a node.
fn packs(machine: &Machine, node: u32, of: u32) -> Vec<PathBuf> {
    let shards = contents(&machine.dir(node).join(format!(".shards/heat/rank-{of:05}")));
    shards.into_keys().filter(|path| path.to_string_lossy().contains("pack-")).collect()
}

fn damage(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    let at = at.min(bytes.len() - 1);
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_shard_counts_as_a_lost_one() {
    let dir = tempfile::tempdir().unwrap();
    // Of the header, of a chunk, of the last checksum.
    for at in [3, 50, 4000, usize::MAX] {
        let mut machine = Machine::new(&dir.path().join(at.to_string()), 4, (2, 2));
        machine.run(|rank, builder| save_all(builder, rank, 1..=3));
        machine.lose(&[0]);
        let damaged: Vec<PathBuf> = packs(&machine, 2, 0);
        assert!(!damaged.is_empty());
        damaged.iter().for_each(|path| damage(path, at));
        let restored = machine.run(|rank, builder| {
            let mut session = builder.open().unwrap().session("heat").unwrap();
            restore(&mut session, rank).unwrap().unwrap()
        });
        assert_eq!(restored[0].rebuilt, [2, 3], "byte {at}");
    }
    // One more than is covered: no byte of it is believed.
    let mut machine = Machine::new(&dir.path().join("more"), 3, (2, 1));
    machine.run(|rank, builder| save_all(builder, rank, 1..=3));
    machine.lose(&[0]);
    packs(&machine, 2, 0).iter().for_each(|path| damage(path, 4000));
    let found = machine.run(|rank, builder| {
        let mut session = builder.open().unwrap().session("heat").unwrap();
        restore(&mut session, rank).map(drop).unwrap_err().to_string()
    });
    assert!(found[0].contains("more nodes are lost than parity covers"), "{found:?}");
    assert!(!has_version(&machine, 0, 3), "nothing half is visible");
}

#[test]
fn strangers_can_do_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(dir.path(), 2, (1, 1));
    let addresses = Mutex::new(Vec::new());
    machine.run(|rank, builder| {
        let store = builder.open().unwrap();
        let mut session = store.session("heat").unwrap();
        save(&mut session, rank, 1).unwrap();
        session.wait(1, Reached::Parity).unwrap();
        if rank == 0 {
            for address in listening() {
                for said in [&b""[..], &[0xff; 200], b"GET / HTTP/1.1\r\n\r\n", b"OUTCPEER\x01\0\x01\0\0\0\0\0\0\0"] {
                    let mut stream = TcpStream::connect((LOOPBACK, address)).unwrap();
                    stream.write_all(said).unwrap();
                    // A whole greeting without the secret, and then a request.
                    let mut hello = b"OUTCPEER\x01\0".to_vec();
                    hello.extend([1, 0, 0, 0, 0, 0, 0, 0]);
                    hello.extend([7; 32]);
                    hello.extend([9; 32]);
                    hello.extend([6, 0, 0, 0, 6]);
                    drop(stream.write_all(&hello));
                    drop(stream.shutdown(std::net::Shutdown::Write));
                    let mut heard = Vec::new();
                    drop(stream.read_to_end(&mut heard));
                    assert!(heard.len() <= 64, "at most a nonce and a proof: {heard:?}");
                }
                addresses.lock().unwrap().push(address);
            }
        }
        save(&mut session, rank, 2).unwrap();
        session.wait(2, Reached::Parity).unwrap();
        session.finish().unwrap();
    });
    assert!(!addresses.lock().unwrap().is_empty());
    machine.lose(&[1]);
    let restored = machine.run(|rank, builder| {
        restore(&mut builder.open().unwrap().session("heat").unwrap(), rank).unwrap().unwrap().version
    });
    assert_eq!(restored, [2; 2]);
}

/// The ports on which this process listens on the loopback address. Other tests of this process
/// listen, too: strangers may call them as well.
fn listening() -> Vec<u16> {
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let own: Vec<String> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| Some(fs::read_link(entry.ok()?.path()).ok()?.to_string_lossy().into_owned()))
        .collect();
    let listens = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_own = own.contains(&format!("socket:[{}]", fields.get(9)?));
        let port = fields.get(1)?.strip_prefix("0100007F:")?;
        (is_own && fields[3] == "0A").then(|| u16::from_str_radix(port, 16).ok())?
    };
    table.lines().skip(1).filter_map(listens).collect()
}

#[test]
fn a_rank_that_cannot_be_reached_is_an_error_on_all_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::new(dir.path(), 2, (1, 1));
    let found = run(&dir.path().join("talk"), 2, |ranks| {
        let rank = outcrop::store::Ranks::rank(&ranks);
        let builder = machine.builder(rank, ranks).dir(machine.dir(rank), None);
        // No interface leads there.
        let builder = if rank == 1 { builder.parity_network("ff00::1".parse().unwrap()) } else { builder };
        builder.open().map(drop)
    });
    let texts: Vec<String> =
        found.into_iter().map(|found| found.map_or_else(|error| error.to_string(), |()| "opened".to_owned())).collect();
    assert!(texts.iter().all(|text| text == "opened" || text.contains("parity_network")), "{texts:?}");
}
