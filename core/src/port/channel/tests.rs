//! Channels over a scripted memory port, whose events the test determines.

mod callers;
mod claim;
mod fairness;
mod fast;
mod grow;
mod kept;
mod left;
mod lost;
mod opening;
mod proof;
mod rails;
mod script;
mod starved;

use super::{ChannelEvent, FastPath, OFFER_AFTER, OWN};
