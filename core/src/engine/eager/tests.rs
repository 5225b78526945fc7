//! Tests of eager messages: bypassed receives, probes, multi-receive buffers, the ceiling of unexpected messages, and
//! its growth.

mod bypass;
mod credit;
mod growth;
mod multi;
mod prefixed;
mod probe;
