//! The service thread (paper 2, section 1.4.4: an event manager catches events and calls their handlers).

use std::os::fd::{AsFd, AsRawFd};

use nemesia_core::shared::sleep::{Payer, Sleep};

use super::peers;
use super::provider::Shared;

/// The longest sleep, in milliseconds.
const LONGEST_SLEEP: i32 = 1000;
/// The sleep while packets cannot be read for a shortage of this process: their sockets stay readable.
const SHORT_SLEEP: i32 = 100;

/// The service thread: executes what other processes need, and notices their ends.
pub(super) fn serve(shared: &Shared) {
    loop {
        let mut fds = vec![poll_entry(shared.poke.as_raw_fd())];
        // The entries of other processes, and the VIs that are connected to them.
        let mut processes = Vec::new();
        let mut limit = LONGEST_SLEEP;
        {
            let mut state = shared.lock();
            shared.bell.service().announce(Sleep::Event);
            state.drive_all();
            for vi in state.connected.clone() {
                if let Some(link) = state.vis.get(vi).and_then(|object| object.link.as_ref()) {
                    if link.is_short {
                        limit = SHORT_SLEEP;
                    } else {
                        fds.push(poll_entry(link.connection.as_fd().as_raw_fd()));
                    }
                    if let Some(pidfd) = link.pidfd() {
                        processes.push((fds.len(), vi));
                        fds.push(poll_entry(pidfd.as_raw_fd()));
                    }
                }
            }
            if let Some(listener) = &state.listener {
                fds.extend(listener.descriptors().map(poll_entry));
            }
            for network in state.networks.iter_mut() {
                fds.extend(network.descriptor().map(poll_entry));
                if !network.arm(true) {
                    limit = 0;
                }
            }
            state.must_poke = false;
        }
        // SAFETY: the array has this length. A descriptor that was closed meanwhile, or reused, only ends the sleep.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, limit) };
        shared.bell.service().unpark(Payer::Sleeper);
        let mut count = 0_u64;
        // SAFETY: eight bytes of a local variable; the descriptor does not block.
        unsafe { libc::read(shared.poke.as_raw_fd(), (&raw mut count).cast(), 8) };
        let mut state = shared.lock();
        for vi in state.connected.clone() {
            let link = state.vis.get_mut(vi).and_then(|object| object.link.as_mut());
            if let Some(link) = link {
                link.read_packets();
            }
        }
        for (_, vi) in processes.into_iter().filter(|(at, _)| fds[*at].revents != 0) {
            if let Some(link) = state.vis.get_mut(vi).and_then(|object| object.link.as_mut()) {
                link.look();
            }
        }
        peers::serve_requests(shared, &mut state);
    }
}

fn poll_entry(fd: i32) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}
