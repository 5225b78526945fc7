//! Settings of the start of an endpoint.

use super::Config;

impl Config {
    /// Sets strict mode: a preference that cannot be met (see [`Config::warnings`], and for those found at start
    /// [`Endpoint::warnings`](crate::Endpoint::warnings)) is an error instead of a warning.
    #[must_use]
    pub fn strict(self, strict: bool) -> Self {
        self.with(["NEMESIA_STRICT"], |config| config.strict = strict)
    }

    /// Prints [`Endpoint::explain`](crate::Endpoint::explain) on the standard error output at start.
    #[must_use]
    pub fn explain(self, explain: bool) -> Self {
        self.with(["NEMESIA_EXPLAIN"], |config| config.explain = explain)
    }

    /// Returns whether a preference that cannot be met is an error.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// Sets whether [`Endpoint::open`](crate::Endpoint::open) takes the connection to the launcher over from other code
    /// of this process that has initialised it, such as an MPI library. That code must not use the connection any
    /// longer, not even to finalise it: [`Endpoint::close`](crate::Endpoint::close) ends it. Without this, opening
    /// is an error, and the remedy is [`Endpoint::open_with`](crate::Endpoint::open_with).
    #[must_use]
    pub fn pmi_take_over(self, take_over: bool) -> Self {
        self.with(["NEMESIA_PMI_TAKE_OVER"], |config| config.pmi_take_over = take_over)
    }
}
