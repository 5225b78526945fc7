//! Channels: packets over a simulated RDMA fabric, or over the placement that ships and simulated streams.
//!
//! [`model`] explores every interleaving of the credits of two small ends. [`world`] runs whole channels at
//! random. In them processes die ([`world`]), leave in good order ([`leave`]), and come back, as soon as their peers
//! have accepted them ([`accept`]). They also access each other's memory ([`access`]).
//! [`direct`] has engines that use each other's regions by such accesses.

mod accept;
mod access;
pub(crate) mod direct;
pub(crate) mod fabric;
mod leave;
pub(crate) mod model;
pub(crate) mod node;
mod rest;
mod transfer;
pub(crate) mod world;
