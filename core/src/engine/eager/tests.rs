//! Tests of eager messages: bypassed receives, probes, the ceiling of unexpected messages, and its growth.

mod bypass;
mod credit;
mod growth;
mod prefixed;
mod probe;
