//! Channels: packets over a simulated RDMA fabric.
//!
//! [`model`] explores every interleaving of the credits of two small ends. [`world`] runs whole channels at
//! random.

pub(crate) mod model;
mod node;
mod rest;
pub(crate) mod world;
