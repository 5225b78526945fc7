//! Tests between processes, which the tests start. What needs a process image of its own is a program of its own:
//! `interposed`, `leftovers`, `quick_start` and `successor`.

mod allocated;
mod corrupt;
mod crash;
mod cut;
mod endings;
mod event;
mod exchange;
mod hostile;
mod hosts;
mod lone;
mod net;
mod observe;
mod one_sided;
mod refusal;
mod restart;
mod shrink;
mod unexpected;
