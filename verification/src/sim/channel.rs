//! Channels: packets over a simulated RDMA fabric, or over the placement that ships and simulated streams.
//!
//! [`model`] explores every interleaving of the credits of two small ends. [`world`] runs whole channels at
//! random.

pub(crate) mod fabric;
pub(crate) mod model;
mod node;
mod rest;
pub(crate) mod world;
