//! Refusals of calls and answers: a code, both values, and words.
#![forbid(unsafe_code)]

use core::fmt;

/// Most bytes of text in a refusal.
pub const MOST_REFUSAL_TEXT: usize = 160;

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRefuse<'a> {
    /// Why.
    pub code: RefusalCode,
    /// Whether the same call can succeed later.
    pub is_passing: bool,
    /// The value of the sender, and the value of the receiver, that do not agree.
    pub values: [u64; 2],
    /// The reason in words.
    pub text: LinkText<'a>,
}

/// The reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// The sender has no place, number or memory.
    Full,
    /// The challenge is unknown, used up or too old.
    Challenge,
    /// A proof is wrong, or the caller is not where its address says.
    Proof,
    /// The versions differ.
    Version,
    /// The message is malformed, or there is no such service.
    Message,
    /// Sizes or settings of both ends do not go together.
    Shape,
    /// The sender does not admit the caller.
    Unknown,
    /// The connection of this rank has ended for the sender.
    Ended,
    /// No path could be made.
    Path,
    /// A code of a later version.
    Other(u16),
}

impl RefusalCode {
    /// Returns the code on the wire.
    pub const fn code(self) -> u16 {
        match self {
            Self::Full => 1,
            Self::Challenge => 2,
            Self::Proof => 3,
            Self::Version => 4,
            Self::Message => 5,
            Self::Shape => 6,
            Self::Unknown => 7,
            Self::Ended => 8,
            Self::Path => 9,
            Self::Other(code) => code,
        }
    }

    pub(super) const fn from_code(code: u16) -> Self {
        match code {
            1 => Self::Full,
            2 => Self::Challenge,
            3 => Self::Proof,
            4 => Self::Version,
            5 => Self::Message,
            6 => Self::Shape,
            7 => Self::Unknown,
            8 => Self::Ended,
            9 => Self::Path,
            code => Self::Other(code),
        }
    }
}

/// Printable ASCII from another process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LinkText<'a>(pub(super) &'a [u8]);

impl<'a> LinkText<'a> {
    /// No text.
    pub const EMPTY: Self = Self(b"");

    /// Returns the text, cut before its first other character, and after `most` bytes.
    pub fn new(text: &'a str, most: usize) -> Self {
        let len = text.bytes().take(most).take_while(is_printable).count();
        Self(text.as_bytes().get(..len).unwrap_or(&[]))
    }

    /// Returns the text.
    pub fn get(&self) -> &'a str {
        core::str::from_utf8(self.0).unwrap_or("")
    }
}

impl fmt::Debug for LinkText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.get(), f)
    }
}

/// The words of a refusal that this process makes: printable ASCII.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RefusalWords {
    text: [u8; MOST_REFUSAL_TEXT],
    len: u8,
}

impl RefusalWords {
    /// Returns these words, cut to [`MOST_REFUSAL_TEXT`] bytes. Bytes of other characters become question marks.
    pub const fn new(words: &str) -> Self {
        let (bytes, mut text, mut len) = (words.as_bytes(), [0; MOST_REFUSAL_TEXT], 0);
        while len < bytes.len() && len < MOST_REFUSAL_TEXT {
            text[len] = if is_printable(&bytes[len]) { bytes[len] } else { b'?' };
            len += 1;
        }
        Self { text, len: len as u8 }
    }

    /// Returns the words.
    pub fn get(&self) -> &str {
        self.text.get(..usize::from(self.len)).map_or("", |text| LinkText(text).get())
    }
}

impl fmt::Debug for RefusalWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.get(), f)
    }
}

pub(super) const fn is_printable(byte: &u8) -> bool {
    matches!(byte, b' '..=b'~')
}
