//! Eager messages.
#![forbid(unsafe_code)]

mod bypass;
mod credit;
mod own;
mod probe;
mod receive;
mod send;
#[cfg(test)]
mod tests;

pub use bypass::Bypass;
