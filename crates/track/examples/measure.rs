//! Measures, to be deleted.
use std::{hint::black_box, ptr, time::{Duration, Instant}};
use outcrop_track::*;
const PAGE: usize = 4096;
fn map(bytes: usize, huge: bool) -> &'static mut [u8] {
    unsafe {
        let p = libc::mmap(ptr::null_mut(), bytes + (2 << 20), 3, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        let p = p.map_addr(|a| a.next_multiple_of(2 << 20));
        if huge { libc::madvise(p, bytes, libc::MADV_HUGEPAGE); }
        let s = std::slice::from_raw_parts_mut(p.cast::<u8>(), bytes);
        s.fill(1);
        s
    }
}
fn ms(d: Duration) -> f64 { d.as_secs_f64() * 1e3 }
fn writes(m: &mut [u8], every: usize, v: u8) -> Duration {
    let t = Instant::now();
    let mut p = 0;
    while p < m.len() / PAGE { unsafe { m.as_mut_ptr().add(p * PAGE).write_volatile(v) }; p += every; }
    t.elapsed()
}
fn main() {
    let bytes = 1usize << 30;
    let what = std::env::args().nth(1).unwrap_or_default();
    let m = map(bytes, false);
    if what == "hash" {
        for kind in HashKind::ALL { for threads in [1, 2] { for block in [256, 4096, 65536, 1 << 20, 16 << 20] {
            let h = CpuHasher::new(kind, threads);
            let n = if kind == HashKind::Md5 { 128 << 20 } else { 512 << 20 };
            let m = &m[..n];
            let mut out = vec![[0; 16]; n.div_ceil(block)];
            let mut best = f64::INFINITY;
            for _ in 0..3 { let t = Instant::now(); h.hash(m, block, &mut out); best = best.min(t.elapsed().as_secs_f64()); }
            println!("{kind} threads {threads} block {block}: {:.2} GB/s", n as f64 / best / 1e9);
        } } }
        let mut best = f64::INFINITY;
        for _ in 0..3 { let t = Instant::now(); let s: u64 = unsafe { m.align_to::<u64>().1 }.iter().fold(0, |a, b| a.wrapping_add(*b)); black_box(s); best = best.min(t.elapsed().as_secs_f64()); }
        println!("read {:.2} GB/s", bytes as f64 / best / 1e9);
    }
    if what == "track" {
        for huge in [false, true] {
            let m = map(bytes, huge);
            for way in [Way::Pages, Way::Protection] {
                for every in [1000, 100, 20, 10, 5, 2, 1] {
                    let mut t = Tracker::new(TrackOptions { way, ..Default::default() });
                    t.changed("m", m);
                    let arm = t.stats("m").unwrap().arm_ns;
                    let plain = { let mut tt = Duration::MAX; t.stop("m"); for _ in 0..2 { tt = tt.min(writes(m, every, 3)); } t.changed("m", m); tt };
                    let w = writes(m, every, 4);
                    let c = t.changed("m", m);
                    let s = t.stats("m").unwrap();
                    let n = (bytes / PAGE).div_ceil(every);
                    println!("huge {huge} {way} 1/{every}: arm {:.2} ms, writes {:.2} ms (plain {:.2}), {:.2} us/page, collect {:.2} ms, reported {} ranges {} pages", arm as f64 / 1e6, ms(w), ms(plain), (ms(w) - ms(plain)) * 1e3 / n as f64, s.collect_ns as f64 / 1e6, c.ranges.len(), s.written_pages);
                }
            }
        }
    }
    if what == "chosen" {
        let m = map(bytes, false);
        for threads in [1, 2] {
        let h = CpuHasher::new(HashKind::Xxh3, threads);
        let block = 65536;
        let mut out = vec![[0u8; 16]; bytes / block];
        for (name, runs) in [("0.1%", 1000), ("1%", 100), ("2%", 50), ("5%", 20), ("10%", 10), ("20%", 5), ("50%", 2), ("100%", 1)] {
            for contiguous in [false, true] {
                let calls = 30;
                let go = |m: &mut [u8], v: u8| if contiguous { let n = m.len() / runs; writes(&mut m[..n], 1, v) } else { writes(m, runs, v) };
                let mut cost = [0.0; 2];
                let mut ways = 0;
                for (i, way) in [Way::Everything, Way::Chosen].into_iter().enumerate() {
                    let mut t = Tracker::new(TrackOptions { way, block_bytes: block, ..Default::default() });
                    for call in 0..calls {
                        let b = Instant::now();
                        let c = t.changed("m", m);
                        let hb = Instant::now();
                        let mut hashed = 0; let mut next = 0;
                        for r in &c.ranges {
                            let (s, e) = ((r.start / block).max(next), r.end.div_ceil(block));
                            if s < e { h.hash(&m[s * block..e * block], block, &mut out[s..e]); hashed += (e - s) * block; next = e; }
                        }
                        t.hashed("m", hashed, hb.elapsed());
                        cost[i] += ms(b.elapsed());
                        cost[i] += ms(go(m, call as u8));
                        ways += usize::from(c.way == Way::Pages);
                    }
                }
                println!("threads {threads} {name} contiguous {contiguous}: everything {:.1} ms, chosen {:.1} ms, ratio {:.3}, pages in {ways} of {calls}", cost[0], cost[1], cost[1] / cost[0]);
            }
        } }
    }
    if what == "freeze" {
        for way in [FreezeWay::Fork, FreezeWay::Protect] { for size in [16usize << 20, 256 << 20, 1 << 30] { for huge in [false, true] {
            let m = map(size, huge);
            writes(m, 1, 1);
            let t = Instant::now();
            let f = match freeze(&[m], FreezeOptions { way, ..Default::default() }) { Ok(f) => f, Err(e) => { println!("{e}"); continue } };
            let made = t.elapsed();
            let every = 20;
            let w = writes(m, every, 9);
            let mut buf = vec![0u8; 1 << 20]; buf.fill(1);
            let t = Instant::now();
            for at in (0..size).step_by(1 << 20) { f.read(0, at, &mut buf).unwrap(); }
            let r = t.elapsed();
            let t = Instant::now();
            let x = f.extra_bytes();
            let xt = t.elapsed();
            let t = Instant::now();
            drop(f);
            println!("{way} {} MiB huge {huge}: freeze {:.2} ms, {:.2} us per written page, read {:.2} GB/s, extra {} MiB ({:.2} ms to ask), drop {:.2} ms", size >> 20, ms(made), ms(w) * 1e3 / (size / PAGE / every) as f64, size as f64 / r.as_secs_f64() / 1e9, x >> 20, ms(xt), ms(t.elapsed()));
            unsafe { libc::munmap(m.as_mut_ptr().cast(), size) };
        } } }
    }
}
