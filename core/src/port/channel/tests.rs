//! Channels over a port on which happens what the test says.

mod claim;
mod opening;
mod script;
mod share;

use super::{ChannelEvent, OWN};
