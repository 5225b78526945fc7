//! Channels over a port on which happens what the test says.

mod opening;
mod script;

use super::{ChannelEvent, OWN};
