//! Groups in threads of one process.

use std::time::{Duration, Instant};

use nemesia_core::payload::Segment;
use nemesia_core::rdma_channel::Design;

use super::{ADMISSION_BYTES, ChannelGroup, PastWrite, PipeError};
use crate::bootstrap::threads;
use crate::config::{ChannelDesign, Config, NetChoice};
use crate::endpoint::{Endpoint, PeerGroup};
use crate::error::Error;

/// The time in which a group must come to its end.
const HANGS: Duration = Duration::from_secs(120);

fn config() -> Config {
    Config::default().net_address(Some("127.0.0.1"))
}

/// Runs a function for each rank of a group, in threads.
fn group<T: Send>(
    size: usize,
    config: &Config,
    work: impl Fn(ChannelGroup) -> Result<T, Error> + Sync,
) -> Vec<Result<T, Error>> {
    std::thread::scope(|scope| {
        let ranks = threads(size).into_iter().map(|exchange| {
            let work = &work;
            scope.spawn(move || work(ChannelGroup::begin_with(config, Box::new(exchange))?))
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn byte(from: usize, to: usize, at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16).wrapping_mul(31).wrapping_add(from * 7 + to) as u8
}

/// Sends `len` bytes to each other rank, and receives as many, in lists of a header and a payload.
fn all_to_all(group: &mut ChannelGroup, len: usize) -> Result<(), Error> {
    let (own, size, begun) = (group.rank(), group.size(), Instant::now());
    let peers: Vec<usize> = (0..size).filter(|rank| *rank != own).collect();
    let puts: Vec<Vec<u8>> =
        (0..size).map(|to| (0..len).map(|at| byte(own, to, at)).collect::<Vec<_>>()).collect();
    let mut gets = vec![vec![0_u8; len]; size];
    let (mut put, mut got) = (vec![0; size], vec![0; size]);
    while peers.iter().any(|peer| put[*peer] < len || got[*peer] < len) {
        for &peer in &peers {
            let rest = &puts[peer][put[peer]..];
            // Headers end at 40.
            let cut = 40_usize.saturating_sub(put[peer]).min(rest.len());
            let list = [&rest[..cut], &rest[cut..]]
                .map(|part| Segment { base: part.as_ptr().cast_mut(), len: part.len() });
            if put[peer] < len {
                // SAFETY: nothing changes the bytes before they are counted, unless this function returns early with an
                // error: then its caller drops the group, which was given no other buffer.
                put[peer] += unsafe { group.put_raw(peer, list.as_ptr(), 2) }?;
            }
            let base = gets[peer].as_mut_ptr();
            // SAFETY: within the buffer.
            let base = unsafe { base.add(got[peer]) };
            let into = Segment { base, len: len - got[peer] };
            if got[peer] < len {
                // SAFETY: as above; the bytes are not read before they are counted.
                got[peer] += unsafe { group.get_raw(peer, &raw const into, 1) }?;
            }
        }
        assert!(begun.elapsed() < HANGS, "rank {own} hangs: put {put:?}, got {got:?} of {len}");
    }
    for peer in peers {
        let wrong = (0..len).find(|at| gets[peer][*at] != byte(peer, own, *at));
        assert_eq!(wrong, None, "rank {own} from {peer}: {len} bytes");
    }
    Ok(())
}

fn exchange(size: usize, config: &Config) {
    let results = group(size, config, |mut group| {
        group.connect()?;
        for len in [1, 40, 41, 300, 40_000, 300_000] {
            all_to_all(&mut group, len)?;
        }
        let explained = group.explain();
        group.finalize()?;
        Ok(explained)
    });
    for result in results {
        let explained = result.unwrap();
        assert_eq!(explained.lines().count(), size, "{explained}");
    }
}

#[test]
fn every_design_carries_all_to_all_inside_a_machine() {
    for design in ChannelDesign::ALL {
        for size in [1, 3] {
            exchange(size, &config().channel_design(design));
        }
    }
}

#[test]
fn every_design_carries_all_to_all_over_tcp() {
    for design in Design::ALL {
        let config = config().local(false).net(NetChoice::Tcp);
        exchange(3, &config.channel_design(ChannelDesign::Paper(design)));
    }
}

/// Runs a function for each of three processes, as threads, that know each other by the addresses of their endpoints.
fn among<T: Send>(
    config: &Config,
    work: impl Fn(ChannelGroup, &mut Endpoint, &PeerGroup) -> Result<T, Error> + Sync,
) -> Vec<Result<T, Error>> {
    std::thread::scope(|scope| {
        let ranks = threads(3).into_iter().map(|mut exchange| {
            let work = &work;
            scope.spawn(move || {
                let mut endpoint = Endpoint::alone(&Config::default())?;
                let peers = endpoint.group_with(&mut exchange)?;
                let group = ChannelGroup::begin_among(config, &peers)?;
                let done = work(group, &mut endpoint, &peers)?;
                endpoint.among_peers(&peers)?.barrier()?;
                endpoint.close()?;
                Ok(done)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn processes_that_know_each_others_addresses_need_no_launcher() {
    let tcp = config().local(false).net(NetChoice::Tcp);
    for config in [config(), config().channel_design(ChannelDesign::Paper(Design::ZeroCopyPush)), tcp] {
        let results = among(&config, |mut group, endpoint, peers| {
            let early = group.connect().unwrap_err().to_string();
            assert!(early.contains("connect_among"), "{early}");
            group.connect_among(endpoint, peers)?;
            // The endpoint and the channel do not disturb each other.
            endpoint.among_peers(peers)?.barrier()?;
            all_to_all(&mut group, 50_000)?;
            group.finalize()
        });
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }
}

/// Makes a group among three peers in which one process or pair cannot connect. All return the reason at once.
fn all_are_told(prepare: impl Fn(&mut ChannelGroup) -> Result<(), Error> + Sync, words: [&str; 3]) {
    let tcp = config().local(false).net(NetChoice::Tcp);
    let results = among(&tcp, |mut group, endpoint, peers| {
        prepare(&mut group)?;
        Ok(group.connect_among(endpoint, peers).unwrap_err().to_string())
    });
    for (rank, (result, words)) in results.into_iter().zip(words).enumerate() {
        let why = result.unwrap();
        assert!(why.contains(words), "rank {rank}: {why}");
    }
}

#[test]
fn a_process_that_cannot_open_its_ports_tells_all_others() {
    // An address for documentation, which no machine has.
    let prepare = |group: &mut ChannelGroup| {
        if group.rank() == 1 {
            group.config = group.config.clone().net_address(Some("203.0.113.1"));
        }
        Ok(())
    };
    all_are_told(prepare, ["rank 1, RDMA Channel: it cannot connect", "203.0.113.1", "rank 1, RDMA Channel"]);
}

#[test]
fn a_process_that_refuses_a_design_tells_all_others() {
    let prepare = |group: &mut ChannelGroup| match group.rank() {
        2 => Ok(()),
        rank => group.set_design(1 - rank, ChannelDesign::Direct),
    };
    all_are_told(prepare, ["needs shared memory", "needs shared memory", "rank 0, RDMA Channel: it cannot"]);
}

#[test]
fn a_variable_that_does_not_exist_is_a_warning_and_in_strict_mode_an_error() {
    // Without the first, the files of the user who runs the tests would count.
    let variables = [("NEMESIA_CONFIG", ""), ("NEMESIA_CHANNEL_DESING", "basic")];
    let of = |strict: bool| {
        let config = Config::from_vars(variables.map(|(name, value)| (name.into(), value.into()))).unwrap();
        ChannelGroup::of(&config.strict(strict), (0, 1), None)
    };
    let warnings = of(false).unwrap().warnings().to_vec();
    assert!(warnings.iter().any(|it| it.contains("NEMESIA_CHANNEL_DESING")), "{warnings:?}");
    assert!(matches!(of(true), Err(Error::Config(_))));
}

#[test]
fn several_groups_among_the_same_peers_are_apart() {
    let results = among(&config(), |mut group, endpoint, peers| {
        let mut other = ChannelGroup::begin_among(&config(), peers)?;
        group.connect_among(endpoint, peers)?;
        other.connect_among(endpoint, peers)?;
        all_to_all(&mut group, 300)?;
        all_to_all(&mut other, 4000)?;
        group.finalize()?;
        other.finalize()
    });
    results.into_iter().for_each(|result| result.unwrap());
}

#[test]
fn a_group_is_connected_among_its_own_peers_only() {
    let results = among(&config(), |mut group, endpoint, peers| {
        let first = peers.addresses()[..1].to_vec();
        let others = endpoint.group(&first)?;
        assert!(matches!(group.connect_among(endpoint, &others), Err(Error::Members)));
        group.connect_among(endpoint, peers)?;
        group.finalize()
    });
    results.into_iter().for_each(|result| result.unwrap());
}

#[test]
fn small_rings_and_chunks_carry_all_to_all() {
    for design in ChannelDesign::ALL {
        exchange(2, &config().channel_design(design).channel_sizes(4096, 64).channel_zero_copy_from(100));
    }
}

#[test]
fn a_single_pipe_may_have_another_design() {
    let results = group(3, &config(), |mut group| {
        if let Some(peer) = [Some(1), Some(0), None][group.rank()] {
            group.set_design(peer, ChannelDesign::Paper(Design::Basic))?;
        }
        group.connect()?;
        all_to_all(&mut group, 5000)?;
        let explained = group.explain();
        group.finalize()?;
        Ok(explained)
    });
    let lines: Vec<String> = results.into_iter().map(Result::unwrap).collect();
    assert!(lines[0].contains("rank 1: shared memory, basic"), "{}", lines[0]);
    assert!(lines[0].contains("rank 2: shared memory, direct"), "{}", lines[0]);
}

#[test]
fn ends_of_different_sizes_are_refused_on_both_sides() {
    for design in [ChannelDesign::Direct, ChannelDesign::Paper(Design::Pipelined)] {
        let config = config().channel_design(design);
        let results = group(2, &config, |mut group| {
            if group.rank() == 1 {
                group.config = group.config.clone().channel_sizes(8192, 1024);
            }
            group.connect()
        });
        for (rank, result) in results.into_iter().enumerate() {
            let why = result.unwrap_err().to_string();
            // Over a port the other side may be gone before its refusal is read.
            let is_cut_off = rank == 1 && design != ChannelDesign::Direct;
            let about_sizes =
                why.contains("NEMESIA_CHANNEL_RING_BYTES") || why.contains("same settings") || is_cut_off;
            assert!(about_sizes && why.contains(&format!("rank {}", 1 - rank)), "{rank}: {why}");
        }
    }
}

/// Returns settings for a pipe of each kind: in mapped memory, over a port, and to another machine.
fn ways() -> [Config; 4] {
    let [basic, piggyback, learned] =
        [Design::Basic, Design::Piggyback, Design::Learned].map(ChannelDesign::Paper);
    let tcp = config().local(false).net(NetChoice::Tcp);
    let inside = [ChannelDesign::Direct, basic, learned].map(|design| config().channel_design(design));
    let [direct, basic, learned] = inside;
    [direct, basic, learned, tcp.channel_design(piggyback)]
}

/// Gets 1000 bytes of rank 0, which has put them, and returns the error that follows.
fn bytes_and_an_error(group: &mut ChannelGroup) -> Error {
    let (mut got, mut into, begun) = (0, [0; 1001], Instant::now());
    loop {
        assert!(begun.elapsed() < HANGS, "got {got}");
        match group.get(0, &mut [std::io::IoSliceMut::new(&mut into[got..])]) {
            Ok(count) => got += count,
            Err(error) => {
                assert_eq!((got, &into[..1000]), (1000, &[7; 1000][..]), "{error}");
                return error;
            }
        }
    }
}

#[test]
fn bytes_of_a_rank_that_has_gone_arrive_and_then_an_error_that_says_how_it_went() {
    for (config, finalizes) in ways().iter().flat_map(|config| [(config, false), (config, true)]) {
        let results = group(2, config, |mut group| {
            group.connect()?;
            if group.rank() == 1 {
                let error = bytes_and_an_error(&mut group);
                let put = group.put(0, &[std::io::IoSlice::new(&[1])]).unwrap_err();
                return Ok(Some((group.explain(), error, put)));
            }
            whole(&mut group, 1, &mut [7; 1000], true)?;
            if finalizes {
                return group.finalize().map(|()| None);
            }
            // As a death: nothing is announced.
            let begun = Instant::now();
            while !group.is_flushed() {
                assert!(begun.elapsed() < HANGS);
            }
            Ok(None)
        });
        let ends: Vec<_> = results.into_iter().filter_map(Result::unwrap).collect();
        for (explained, get, put) in ends {
            for error in [get, put] {
                let Error::Pipe { rank: 0, problem } = error else { unreachable!("{explained}: {error}") };
                assert_eq!(problem == PipeError::Ended, finalizes, "{explained}: {problem}");
            }
        }
    }
}

#[test]
fn a_wait_returns_the_rank_that_has_bytes_and_each_end_once() {
    for config in ways() {
        let results = group(3, &config, |mut group| {
            assert!(group.wait(Some(HANGS)).unwrap_err().to_string().contains("call connect first"));
            group.connect()?;
            if group.rank() > 0 {
                // The request of rank 0 ends the sleep of this process. Rank 1 may end before.
                while let Some(other) = group.wait(Some(HANGS))?.filter(|rank| *rank > 0) {
                    let end = group.get(other, &mut [std::io::IoSliceMut::new(&mut [0])]);
                    assert!(!matches!(end, Ok(1..)), "rank {other} puts nothing here");
                }
                whole(&mut group, 0, &mut [0], false)?;
                whole(&mut group, 0, &mut [7; 300], true)?;
                return group.finalize();
            }
            assert_eq!(group.wait(Some(Duration::ZERO))?, None);
            // One after the other: rank 2 has nothing before it is asked.
            for rank in [1, 2] {
                whole(&mut group, rank, &mut [1], true)?;
                let (mut got, mut into, mut ends) = (0, [0; 300], 0);
                while ends == 0 {
                    assert_eq!(group.wait(Some(HANGS))?, Some(rank), "{}", group.explain());
                    match group.get(rank, &mut [std::io::IoSliceMut::new(&mut into[got..])]) {
                        Ok(count) if got < 300 => got += count,
                        Ok(_) => {
                            let end = group.get(rank, &mut [std::io::IoSliceMut::new(&mut [0])]);
                            ends += usize::from(end.is_err());
                        }
                        Err(error) => unreachable!("{error}"),
                    }
                }
                assert_eq!((got, into), (300, [7; 300]));
            }
            assert_eq!(group.wait(None)?, None, "all have ended");
            group.finalize()
        });
        results.into_iter().for_each(|result| result.unwrap());
    }
}

#[test]
fn calls_that_make_no_sense_are_refused() {
    let results = group(2, &config(), |mut group| {
        let early = group.get(1 - group.rank(), &mut []).unwrap_err().to_string();
        assert!(early.contains("call connect first"), "{early}");
        group.connect()?;
        let own = group.put(group.rank(), &[]).unwrap_err().to_string();
        assert!(own.contains("no pipe to itself"), "{own}");
        assert!(matches!(group.put(2, &[]), Err(Error::Rank { rank: 2, last: 1 })));
        assert!(group.set_design(0, ChannelDesign::Auto).is_err());
        all_to_all(&mut group, 100)?;
        group.finalize()
    });
    results.into_iter().for_each(|result| result.unwrap());
}

/// Puts or gets all of these bytes.
fn whole(group: &mut ChannelGroup, peer: usize, bytes: &mut [u8], puts: bool) -> Result<(), Error> {
    let (mut done, begun) = (0, Instant::now());
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        done += match puts {
            true => group.put(peer, &[std::io::IoSlice::new(rest)])?,
            false => group.get(peer, &mut [std::io::IoSliceMut::new(rest)])?,
        };
        assert!(begun.elapsed() < HANGS, "{done} of {} bytes", bytes.len());
    }
    Ok(())
}

/// Sends a message by rendezvous from rank 0 to rank 1, and returns whether it went past the pipe.
fn rendezvous(group: &mut ChannelGroup, len: usize) -> Result<bool, Error> {
    // Leaked, so that nothing that a failed test leaves in use is freed.
    let out: &'static [u8] = (0..len).map(|at| byte(0, 1, at)).collect::<Vec<_>>().leak();
    let into = vec![0_u8; len].leak().as_mut_ptr();
    let (mut key, begun) = ([0; ADMISSION_BYTES], Instant::now());
    if group.rank() == 0 {
        whole(group, 1, &mut key, false)?;
        let mut ended = false;
        loop {
            // SAFETY: the bytes are leaked and never change.
            let progress = unsafe { group.write_raw(1, out.as_ptr(), len, &key) }?;
            if progress == PastWrite::Posted && !ended {
                whole(group, 1, &mut [1], true)?;
                ended = true;
            }
            if matches!(progress, PastWrite::Done | PastWrite::Refused) {
                if !ended {
                    whole(group, 1, &mut [u8::from(progress == PastWrite::Done)], true)?;
                }
                return Ok(progress == PastWrite::Done);
            }
            assert!(begun.elapsed() < HANGS, "{progress:?}");
        }
    }
    // SAFETY: the bytes are leaked, and nothing uses them before the admission has ended.
    let admission = unsafe { group.admit_raw(0, into, len) }?;
    let mut end = [0];
    whole(group, 0, &mut admission.as_ref().map_or(key, |admission| admission.key()), true)?;
    whole(group, 0, &mut end, false)?;
    if let Some(admission) = admission {
        while !group.end_admission(&admission) {
            assert!(begun.elapsed() < HANGS, "the admission does not end");
        }
    }
    // SAFETY: the admission has ended.
    let bytes = unsafe { std::slice::from_raw_parts(into, len) };
    assert!(end == [0] || bytes == out, "{len} bytes");
    Ok(end == [1])
}

#[test]
fn a_rendezvous_moves_data_past_the_pipe_where_there_is_a_port() {
    let tcp = config().local(false).net(NetChoice::Tcp);
    for config in [config(), tcp] {
        for design in [ChannelDesign::Auto, ChannelDesign::Paper(Design::Basic)] {
            let config = config.clone().channel_design(design);
            let results = group(2, &config, |mut group| {
                group.connect()?;
                let mut past = Vec::new();
                for len in [1, 5000, 300_000] {
                    past.push(rendezvous(&mut group, len)?);
                }
                all_to_all(&mut group, 5000)?;
                let direct = group.explain().contains("direct");
                group.finalize()?;
                Ok((past, direct))
            });
            for result in results {
                let (past, direct) = result.unwrap();
                assert_eq!(past, [!direct; 3], "{design:?}");
            }
        }
    }
}
