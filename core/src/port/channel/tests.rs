//! Channels over a port on which happens what the test says.

mod claim;
mod lost;
mod opening;
mod script;
mod share;

use super::{ChannelEvent, OWN};
