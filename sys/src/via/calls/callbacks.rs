//! Callbacks (paper 2, section 1.4.4), and the thread that calls them. Each is called once, in the order in which they
//! were registered, without any lock: a callback may use the library.

use std::ffi::c_void;
use std::io::Write;
use std::time::{Duration, Instant};

use nemesia_core::via::ViaError;
use nemesia_core::via::vi::ViQueue;

use super::Provider;
use crate::via::objects::{AsyncReport, Callback, ErrorHandler, UserContext, index, pointer};
use crate::via::provider::Shared;
use crate::via::state::ViaState;

/// A callback that is due, with its arguments.
enum Due {
    Descriptor(extern "C" fn(*mut c_void, *mut c_void, *mut c_void, *mut c_void), [*mut c_void; 4]),
    Completion(extern "C" fn(*mut c_void, *mut c_void, *mut c_void, i32), [*mut c_void; 3], i32),
    Error(Option<(UserContext, ErrorHandler)>, AsyncReport),
}

impl Provider {
    /// Registers a callback for the next finished descriptor of a queue.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`].
    pub fn notify_descriptor(
        &self,
        vi: u64,
        queue: ViQueue,
        context: *mut c_void,
        callback: Callback,
    ) -> Result<(), ViaError> {
        let mut state = self.lock();
        let object = state.vis.get_mut(vi).ok_or(ViaError::InvalidParameter)?;
        object.notifies[index(queue)].push_back((UserContext(context), callback));
        state.notifies += 1;
        (state.is_changed, state.has_callbacks) = (true, true);
        Ok(())
    }

    /// Registers a callback for the next entry of a completion queue.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`].
    pub fn notify_completion(
        &self,
        queue: u64,
        context: *mut c_void,
        callback: Callback,
    ) -> Result<(), ViaError> {
        let mut state = self.lock();
        let object = state.queues.get_mut(queue).ok_or(ViaError::InvalidParameter)?;
        object.notifies.push_back((UserContext(context), callback));
        state.notifies += 1;
        (state.is_changed, state.has_callbacks) = (true, true);
        Ok(())
    }

    /// Sets the handler of errors that no descriptor reports; `None` restores the default, which logs them.
    ///
    /// # Errors
    /// [`ViaError::InvalidParameter`].
    pub fn set_error_handler(
        &self,
        nic: u64,
        context: *mut c_void,
        handler: Option<ErrorHandler>,
    ) -> Result<(), ViaError> {
        let mut state = self.lock();
        let nic = state.nics.get_mut(nic).ok_or(ViaError::InvalidParameter)?;
        nic.handler = handler.map(|handler| (UserContext(context), handler));
        Ok(())
    }
}

/// The thread that calls callbacks.
pub(super) fn notify(shared: &Shared) {
    loop {
        let has_work = {
            let state = shared.lock();
            state.notifies > 0 || !state.errors.is_empty()
        };
        if !has_work {
            shared.idle();
            continue;
        }
        let limit = Instant::now().checked_add(Duration::from_secs(1));
        if let Ok(Some(due)) = shared.wait(limit, ViaState::drive_all, find) {
            due.call();
        }
    }
}

/// Returns a callback that is due. `None` to wait; `Some(None)` if there is nothing to wait for.
fn find(state: &mut ViaState) -> Option<Option<Due>> {
    if let Some(error) = state.errors.pop_front() {
        let handler = state.nics.get(error.nic as usize as u64).map(|nic| nic.handler);
        // The errors of a NIC that is closed are of no interest.
        return handler.map(|handler| Some(Due::Error(handler, error))).or(Some(None));
    }
    if state.notifies == 0 {
        return Some(None);
    }
    for vi in state.vis.handles(|vi| vi.notifies.iter().any(|queue| !queue.is_empty())) {
        for queue in [ViQueue::Send, ViQueue::Receive] {
            let Some(object) = state.vis.get_mut(vi) else { continue };
            if object.notifies[index(queue)].is_empty() {
                continue;
            }
            let Some(entry) = object.model.take(queue) else { continue };
            let nic = pointer(object.nic);
            let callback = object.notifies[index(queue)].pop_front();
            state.notifies -= 1;
            let descriptor = std::ptr::with_exposed_provenance_mut(entry.cookie as usize);
            if let Some((context, Callback::Descriptor(call))) = callback {
                return Some(Some(Due::Descriptor(call, [context.0, nic, pointer(vi), descriptor])));
            }
        }
    }
    for queue in state.queues.handles(|queue| !queue.notifies.is_empty() && !queue.queue.is_empty()) {
        let Some(object) = state.queues.get_mut(queue) else { continue };
        let (Some(entry), Some((context, callback))) = (object.queue.pop(), object.notifies.pop_front())
        else {
            continue;
        };
        let nic = pointer(object.nic);
        state.notifies -= 1;
        if let Callback::Completion(call) = callback {
            let arguments = [context.0, nic, pointer(entry.vi)];
            return Some(Some(Due::Completion(call, arguments, i32::from(entry.is_receive))));
        }
    }
    None
}

impl Due {
    fn call(self) {
        match self {
            Self::Descriptor(call, [context, nic, vi, descriptor]) => call(context, nic, vi, descriptor),
            Self::Completion(call, [context, nic, vi], is_receive) => call(context, nic, vi, is_receive),
            Self::Error(Some((context, handler)), mut report) => handler(context.0, &raw mut report),
            Self::Error(None, report) => log(&report),
        }
    }
}

/// The default handler: writes one line to the standard error output, as the interface demands.
fn log(report: &AsyncReport) {
    let AsyncReport { vi, error, .. } = *report;
    let line = format!("vipl: asynchronous error {error} of VI {vi:p}; see VipErrorCallback\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
