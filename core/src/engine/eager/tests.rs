//! Tests of eager messages: bypassed receives, probes, and the ceiling of unexpected messages.

mod bypass;
mod credit;
mod prefixed;
mod probe;
