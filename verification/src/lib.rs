//! What tests outside this package use of it: the simulated RDMA fabric.
#![forbid(unsafe_code)]

pub mod rdma;
#[path = "sim/rng.rs"]
mod rng;
