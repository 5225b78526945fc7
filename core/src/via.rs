//! The model of the Virtual Interface Architecture (paper 2, sections 1.3.1 and 1.4): virtual interfaces (VIs) with two
//! work queues, descriptors, completion queues, protection, connections.
//!
//! The model is driven: the layer above lends the storage, copies descriptors in, moves the bytes that the model names
//! (a [`ViaCarrier`]), and writes finished descriptors back. It has no clock, no thread and no allocation.
//!
//! | module | contents | paper 2 |
//! |---|---|---|
//! | [`codes`] | return codes, status bits, error codes, states | 1.3.1 |
//! | [`descriptor`] | the 64 bytes of a descriptor, read once into a local copy | 1.3.1, 1.4.3 |
//! | [`fifo`] | a first-in first-out queue over lent storage, which may grow | |
//! | [`work_queue`] | a work queue: posted, issued and finished descriptors, in order | 1.3.1 |
//! | [`completion`] | completion queues | 1.3.1, 1.4.4 |
//! | [`attributes`] | attributes of VIs, and how those of two VIs match | 1.4.1 |
//! | [`memory`] | protection tags, and registered memory by handle | 1.3.1, 1.4.2, 1.4.5 |
//! | [`blocks`] | a gather list and a scatter list as contiguous blocks | 1.4.3 |
//! | [`record`] | the records that two connected VIs exchange in shared memory | 1.4.3, 1.4.4 |
//! | [`setup`] | the frames that two processes exchange over TCP before a connection | 1.4.1 |
//! | [`vi`] | a VI: states, queues, and the protocol of data transfers | 1.4.3, 1.4.4 |
#![forbid(unsafe_code)]

pub mod attributes;
pub mod blocks;
pub mod codes;
pub mod completion;
pub mod descriptor;
pub mod fifo;
pub mod memory;
pub mod record;
pub mod setup;
pub mod vi;
pub mod work_queue;

pub use attributes::{ViAttributes, ViaMemAttributes};
pub use codes::{AsyncError, Reliability, ViState, ViaError};
pub use descriptor::{ViaDescriptor, ViaOperation, ViaSegment};
pub use vi::{Vi, ViaCarrier};
