//! Channels over a scripted memory port, whose events the test determines.

mod callers;
mod claim;
mod fairness;
mod grow;
mod left;
mod lost;
mod opening;
mod proof;
mod script;
mod starved;

use super::{ChannelEvent, OWN};
