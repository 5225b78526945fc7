//! The parts of this package that other tests use: the oracles of MPI's matching rules, the simulated RDMA fabric, the
//! suite of pipes, simulated byte streams under the shipped placement, fuzz targets, and storage in vectors.
#![deny(unsafe_code)]

pub mod oracle;
pub mod pipes;
pub mod rdma;
#[path = "sim/rng.rs"]
mod rng;
pub mod storage;
pub mod streams;
pub mod targets;
