//! The parts of this package that other tests use: the simulated RDMA fabric, simulated byte
//! streams under the shipped placement, fuzz targets, and storage in vectors.
#![deny(unsafe_code)]

pub mod rdma;
#[path = "sim/rng.rs"]
mod rng;
pub mod storage;
pub mod streams;
pub mod targets;
