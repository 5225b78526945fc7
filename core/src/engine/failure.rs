//! Peers that fail, and that return.
#![forbid(unsafe_code)]

mod reconnect;
#[cfg(test)]
mod tests;
