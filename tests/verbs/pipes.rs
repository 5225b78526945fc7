//! The pipes of the RDMA Channel on the devices: their suite over the port, and groups of processes.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use nemesia::bootstrap::threads;
use nemesia::rdma_channel::{ChannelGroup, Design};
use nemesia::{ChannelDesign, Config, Error, FastPathChoice, NetChoice, Segment};
use nemesia_tests::memory_port::Fabric as _;
use nemesia_tests::pipes::{RealPipes, all_pass_until, moves_long_runs_as};

use crate::{fabric, usable};

/// The time in which a world on an emulated device must come to its end.
const LIMIT: Duration = Duration::from_secs(240);

fn steps() -> usize {
    std::env::var("NEMESIA_TEST_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(2000)
}

/// Returns the number of seeds: `tests/vm/verbs --long` sets 10,000 steps, and may take long.
fn seeds() -> u64 {
    if steps() >= 10_000 { 3 } else { 1 }
}

#[test]
fn pipes_pass_over_devices() {
    let Some(addresses) = usable("pipes_pass_over_devices") else { return };
    let open = |_| {
        let mut devices = fabric::Devices::new(&addresses);
        RealPipes::new(move || devices.port())
    };
    let tallies = all_pass_until(seeds(), (steps(), 8, LIMIT), open, moves_long_runs_as);
    for (design, tally) in tallies {
        println!("{design}: {tally:?}");
        assert!(moves_long_runs_as(design, &tally), "{design}: {tally:?}");
    }
}

fn byte(from: usize, at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16).wrapping_mul(31).wrapping_add(from * 7) as u8
}

/// Sends `len` bytes to each other rank, and receives as many.
fn all_to_all(group: &mut ChannelGroup, len: usize) -> Result<(), Error> {
    let (own, size, begun) = (group.rank(), group.size(), Instant::now());
    // Leaked, so that an error that ends the test leaves no buffer behind that a device still uses.
    let out: &'static [u8] = (0..len).map(|at| byte(own, at)).collect::<Vec<_>>().leak();
    let into: Vec<*mut u8> = (0..size).map(|_| vec![0_u8; len].leak().as_mut_ptr()).collect();
    let (mut put, mut got) = (vec![0; size], vec![0; size]);
    while (0..size).any(|peer| peer != own && (put[peer] < len || got[peer] < len)) {
        for peer in (0..size).filter(|peer| *peer != own) {
            if put[peer] < len {
                let rest = &out[put[peer]..];
                let from = Segment { base: rest.as_ptr().cast_mut(), len: rest.len() };
                // SAFETY: the bytes are leaked and never change.
                put[peer] += unsafe { group.put_raw(peer, &raw const from, 1) }?;
            }
            if got[peer] < len {
                let rest = Segment { base: into[peer].wrapping_add(got[peer]), len: len - got[peer] };
                // SAFETY: the bytes are leaked, and nothing else uses them until they are counted.
                got[peer] += unsafe { group.get_raw(peer, &raw const rest, 1) }?;
            }
        }
        assert!(begun.elapsed() < LIMIT, "rank {own} hangs: put {put:?}, got {got:?} of {len}");
    }
    for peer in (0..size).filter(|peer| *peer != own) {
        // SAFETY: all bytes were counted, so nothing writes them any more.
        let bytes = unsafe { std::slice::from_raw_parts(into[peer], len) };
        let wrong = bytes.iter().enumerate().find(|(at, found)| **found != byte(peer, *at));
        assert_eq!(wrong, None, "rank {own} from {peer}, {len} bytes");
    }
    Ok(())
}

fn take_part(
    address: IpAddr,
    design: Design,
    exchange: nemesia::bootstrap::ThreadExchange,
) -> Result<String, Error> {
    let config = Config::default()
        .local(false)
        .net(NetChoice::Verbs)
        .net_address(Some(&address.to_string()))
        // The pipes poll flags where the device can promise their order; the suite above has both ways.
        .net_fast_path(FastPathChoice::On)
        .channel_design(ChannelDesign::Paper(design));
    let mut group = ChannelGroup::begin_with(&config, Box::new(exchange))?;
    group.connect()?;
    for len in [1, 40, 5000, 300_000] {
        all_to_all(&mut group, len)?;
    }
    let explained = group.explain();
    group.finalize()?;
    Ok(explained)
}

#[test]
fn groups_carry_all_to_all_over_devices() {
    let Some(addresses) = usable("groups_carry_all_to_all_over_devices") else { return };
    for design in Design::ALL {
        let explained: Vec<String> = std::thread::scope(|scope| {
            let ranks: Vec<_> = threads(3)
                .into_iter()
                .zip(addresses.iter().cycle())
                .map(|(exchange, address)| scope.spawn(move || take_part(*address, design, exchange)))
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
        });
        println!("{}", explained[0]);
        assert!(explained[0].contains(&format!("verbs, {}", design.name())), "{}", explained[0]);
    }
}
