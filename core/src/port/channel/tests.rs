//! Channels over a scripted memory port, whose events the test determines.

mod claim;
mod lost;
mod opening;
mod script;
mod share;

use super::{ChannelEvent, OWN};
