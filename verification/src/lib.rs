//! The parts of this package that other tests use: the simulated RDMA fabric, and storage in vectors.
#![deny(unsafe_code)]

pub mod rdma;
#[path = "sim/rng.rs"]
mod rng;
pub mod storage;
