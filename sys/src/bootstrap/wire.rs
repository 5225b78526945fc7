//! The PMI-1 wire protocol: lines of `key=value` tokens, as pure functions.
//!
//! A line ends with a newline character, its tokens are separated by spaces, and its first token is
//! `cmd=NAME`. Everything parsed here comes from another process and is untrusted: lengths and counts are
//! bounded, and unknown or malformed input is a [`WireError`].

#![forbid(unsafe_code)]

use std::fmt::Write as _;

/// The code of [`PmiReply::Init`] by which our launcher refuses a connection that is initialised.
pub(super) const INITIALIZED: i32 = -2;

/// The longest accepted line, in bytes, without its newline.
pub(super) const MAX_LINE: usize = 64 * 1024;
/// The most tokens in one line. The longest line of the protocol has five.
const MAX_TOKENS: usize = 64;
/// How much foreign text an error message repeats, in bytes.
const EXCERPT: usize = 48;

/// Why a line was not accepted.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The line is longer than 64 KiB, or has no end.
    #[error("a line of more than {MAX_LINE} bytes")]
    TooLong,
    /// The line has more tokens than any command of the protocol.
    #[error("a line of more than {MAX_TOKENS} tokens")]
    TooManyTokens,
    /// The line contains a byte that is not printable ASCII.
    #[error("byte {0:#04x} in a line, which may only hold printable ASCII")]
    BadByte(u8),
    /// A token is not `key=value`.
    #[error("token {0:?} is not key=value")]
    BadToken(String),
    /// A key occurs twice in one line.
    #[error("key {0:?} occurs twice")]
    Duplicate(String),
    /// The line does not begin with `cmd=`.
    #[error("a line that does not begin with cmd=")]
    NoCommand,
    /// The command is unknown to this side.
    #[error("unknown command {0:?}")]
    Unknown(String),
    /// The command lacks a field.
    #[error("command {command:?} lacks {field}=")]
    MissingField {
        /// The command.
        command: String,
        /// The key that is absent.
        field: &'static str,
    },
    /// A field that must be a number is not one.
    #[error("field {field}={value:?} is not a number in range")]
    BadNumber {
        /// The key.
        field: &'static str,
        /// Its value.
        value: String,
    },
}

/// Returns the beginning of `text`, short enough for a message.
pub(super) fn excerpt(text: &str) -> String {
    let mut end = text.len().min(EXCERPT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut short = text.get(..end).unwrap_or_default().to_owned();
    if end < text.len() {
        short.push('…');
    }
    short
}

/// Returns whether `text` is a valid key: not empty, and printable ASCII without `=`.
pub(super) fn is_key(text: &str) -> bool {
    is_value(text) && !text.contains('=')
}

/// Returns whether `text` is a valid value: not empty, and printable ASCII without spaces. A value may contain
/// `=`, because a token is divided at its first one.
pub(super) fn is_value(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// One line, divided into tokens that borrow from it.
#[derive(Debug, PartialEq, Eq)]
struct PmiMessage<'a> {
    command: &'a str,
    fields: Vec<(&'a str, &'a str)>,
}

impl<'a> PmiMessage<'a> {
    /// Divides `line`, which has no newline. Repeated and trailing spaces are harmless.
    fn parse(line: &'a [u8]) -> Result<Self, WireError> {
        if line.len() > MAX_LINE {
            return Err(WireError::TooLong);
        }
        if let Some(&byte) = line.iter().find(|byte| !(b' '..=b'~').contains(*byte)) {
            return Err(WireError::BadByte(byte));
        }
        // All bytes are ASCII, so this cannot fail; 0 stands for the byte that does not exist.
        let text = std::str::from_utf8(line).map_err(|_| WireError::BadByte(0))?;
        let mut tokens = text.split(' ').filter(|token| !token.is_empty());
        let command =
            tokens.next().and_then(|token| token.strip_prefix("cmd=")).ok_or(WireError::NoCommand)?;
        let mut fields: Vec<(&str, &str)> = Vec::new();
        for token in tokens {
            if fields.len() + 1 >= MAX_TOKENS {
                return Err(WireError::TooManyTokens);
            }
            let (key, value) = token
                .split_once('=')
                .filter(|(key, _)| !key.is_empty())
                .ok_or_else(|| WireError::BadToken(excerpt(token)))?;
            if key == "cmd" || fields.iter().any(|(other, _)| *other == key) {
                return Err(WireError::Duplicate(excerpt(key)));
            }
            fields.push((key, value));
        }
        Ok(Self { command, fields })
    }

    fn find(&self, field: &str) -> Option<&'a str> {
        self.fields.iter().find(|(key, _)| *key == field).map(|(_, value)| *value)
    }

    fn need(&self, field: &'static str) -> Result<&'a str, WireError> {
        self.find(field).ok_or_else(|| WireError::MissingField { command: excerpt(self.command), field })
    }

    fn number<T: std::str::FromStr>(&self, field: &'static str) -> Result<T, WireError> {
        let value = self.need(field)?;
        value.parse().map_err(|_| WireError::BadNumber { field, value: excerpt(value) })
    }

    /// Returns the result code. Not every launcher sends one with every reply; a missing one means success.
    fn code(&self) -> Result<i32, WireError> {
        if self.find("rc").is_none() { Ok(0) } else { self.number("rc") }
    }
}

/// A request of a process to its launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PmiRequest<'a> {
    Init {
        version: u32,
        subversion: u32,
    },
    GetMaxes,
    GetAppnum,
    GetUniverseSize,
    GetMyKvsname,
    Put {
        kvsname: &'a str,
        key: &'a str,
        value: &'a str,
    },
    Get {
        kvsname: &'a str,
        key: &'a str,
    },
    BarrierIn,
    Finalize,
    Abort {
        code: i32,
    },
    /// Not part of PMI: only for launchers that restart ranks ([`super::members`]).
    Join {
        version: u32,
        incarnation: u64,
        address: &'a str,
    },
    /// Likewise.
    Member {
        rank: usize,
    },
}

impl<'a> PmiRequest<'a> {
    /// Parses a line that a process sent.
    pub(super) fn parse(line: &'a [u8]) -> Result<Self, WireError> {
        let message = PmiMessage::parse(line)?;
        Ok(match message.command {
            "init" => Self::Init {
                version: message.number("pmi_version")?,
                subversion: message.number("pmi_subversion")?,
            },
            "get_maxes" => Self::GetMaxes,
            "get_appnum" => Self::GetAppnum,
            "get_universe_size" => Self::GetUniverseSize,
            "get_my_kvsname" => Self::GetMyKvsname,
            "put" => Self::Put {
                kvsname: message.need("kvsname")?,
                key: message.need("key")?,
                value: message.need("value")?,
            },
            "get" => Self::Get { kvsname: message.need("kvsname")?, key: message.need("key")? },
            "barrier_in" => Self::BarrierIn,
            "finalize" => Self::Finalize,
            "abort" => Self::Abort { code: message.number("exitcode")? },
            "nemesia_join" => Self::Join {
                version: message.number("version")?,
                incarnation: message.number("incarnation")?,
                address: message.need("address")?,
            },
            "nemesia_member" => Self::Member { rank: message.number("rank")? },
            other => return Err(WireError::Unknown(excerpt(other))),
        })
    }

    /// Formats the line to send, with its newline. The caller has checked keys and values.
    pub(super) fn encode(&self) -> String {
        match self {
            Self::Init { version, subversion } => {
                format!("cmd=init pmi_version={version} pmi_subversion={subversion}\n")
            }
            Self::GetMaxes => "cmd=get_maxes\n".to_owned(),
            Self::GetAppnum => "cmd=get_appnum\n".to_owned(),
            Self::GetUniverseSize => "cmd=get_universe_size\n".to_owned(),
            Self::GetMyKvsname => "cmd=get_my_kvsname\n".to_owned(),
            Self::Put { kvsname, key, value } => {
                format!("cmd=put kvsname={kvsname} key={key} value={value}\n")
            }
            Self::Get { kvsname, key } => format!("cmd=get kvsname={kvsname} key={key}\n"),
            Self::BarrierIn => "cmd=barrier_in\n".to_owned(),
            Self::Finalize => "cmd=finalize\n".to_owned(),
            Self::Abort { code } => format!("cmd=abort exitcode={code}\n"),
            Self::Join { version, incarnation, address } => {
                format!("cmd=nemesia_join version={version} incarnation={incarnation} address={address}\n")
            }
            Self::Member { rank } => format!("cmd=nemesia_member rank={rank}\n"),
        }
    }
}

/// An answer of a launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PmiReply<'a> {
    Init {
        code: i32,
        version: u32,
        subversion: u32,
    },
    Maxes {
        kvsname: usize,
        key: usize,
        value: usize,
    },
    Appnum {
        appnum: i64,
    },
    UniverseSize {
        size: i64,
    },
    MyKvsname {
        kvsname: &'a str,
    },
    Put {
        code: i32,
        message: &'a str,
    },
    Get {
        code: i32,
        message: &'a str,
        value: Option<&'a str>,
    },
    BarrierOut {
        code: i32,
        message: &'a str,
    },
    FinalizeAck {
        code: i32,
    },
    /// The answer to [`PmiRequest::Join`]: the turn.
    Joined {
        code: i32,
        message: &'a str,
        turn: u64,
    },
    /// The answer to [`PmiRequest::Member`]; without an address there is no such member.
    Member {
        incarnation: u64,
        turn: u64,
        address: Option<&'a str>,
    },
}

impl<'a> PmiReply<'a> {
    /// Parses a line that a launcher sent.
    pub(super) fn parse(line: &'a [u8]) -> Result<Self, WireError> {
        let message = PmiMessage::parse(line)?;
        let text = message.find("msg").unwrap_or("no_reason_given");
        Ok(match message.command {
            "response_to_init" => Self::Init {
                code: message.code()?,
                version: message.number("pmi_version")?,
                subversion: message.number("pmi_subversion")?,
            },
            "maxes" => Self::Maxes {
                kvsname: message.number("kvsname_max")?,
                key: message.number("keylen_max")?,
                value: message.number("vallen_max")?,
            },
            "appnum" => Self::Appnum { appnum: message.number("appnum")? },
            "universe_size" => Self::UniverseSize { size: message.number("size")? },
            "my_kvsname" => Self::MyKvsname { kvsname: message.need("kvsname")? },
            "put_result" => Self::Put { code: message.code()?, message: text },
            "get_result" => Self::Get { code: message.code()?, message: text, value: message.find("value") },
            "barrier_out" => Self::BarrierOut { code: message.code()?, message: text },
            "finalize_ack" => Self::FinalizeAck { code: message.code()? },
            "nemesia_joined" => {
                Self::Joined { code: message.code()?, message: text, turn: message.number("turn")? }
            }
            "nemesia_member_is" => Self::Member {
                incarnation: message.number("incarnation")?,
                turn: message.number("turn")?,
                address: message.find("address"),
            },
            other => return Err(WireError::Unknown(excerpt(other))),
        })
    }

    /// Formats the line to send, with its newline.
    pub(super) fn encode(&self) -> String {
        match self {
            Self::Init { code, version, subversion } => {
                format!("cmd=response_to_init pmi_version={version} pmi_subversion={subversion} rc={code}\n")
            }
            Self::Maxes { kvsname, key, value } => {
                format!("cmd=maxes kvsname_max={kvsname} keylen_max={key} vallen_max={value}\n")
            }
            Self::Appnum { appnum } => format!("cmd=appnum appnum={appnum}\n"),
            Self::UniverseSize { size } => format!("cmd=universe_size size={size}\n"),
            Self::MyKvsname { kvsname } => format!("cmd=my_kvsname kvsname={kvsname}\n"),
            Self::Put { code, message } => format!("cmd=put_result rc={code} msg={message}\n"),
            Self::Get { code, message, value } => {
                let mut line = format!("cmd=get_result rc={code} msg={message}");
                if let Some(value) = value {
                    // Writing to a String cannot fail.
                    let _ = write!(line, " value={value}");
                }
                line.push('\n');
                line
            }
            // Success is sent without a code, as every launcher does; the code is for clients that look for it.
            Self::BarrierOut { code: 0, .. } => "cmd=barrier_out\n".to_owned(),
            Self::BarrierOut { code, message } => format!("cmd=barrier_out rc={code} msg={message}\n"),
            Self::FinalizeAck { code: 0 } => "cmd=finalize_ack\n".to_owned(),
            Self::FinalizeAck { code } => format!("cmd=finalize_ack rc={code}\n"),
            Self::Joined { code, message, turn } => {
                format!("cmd=nemesia_joined rc={code} msg={message} turn={turn}\n")
            }
            Self::Member { incarnation, turn, address } => {
                let address = address.map_or_else(String::new, |address| format!(" address={address}"));
                format!("cmd=nemesia_member_is incarnation={incarnation} turn={turn}{address}\n")
            }
        }
    }
}

/// Assembles lines from pieces of any size. It holds at most one line of the largest size plus the piece pushed
/// last, if the caller takes every line before it pushes again.
#[derive(Debug, Default)]
pub(super) struct LineBuffer {
    bytes: Vec<u8>,
    /// The length of the prefix that is known to hold no newline.
    searched: usize,
}

impl LineBuffer {
    /// Adds bytes in the order of arrival.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns whether nothing is waiting, not even part of a line.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns whether a complete line may be waiting.
    pub(super) fn has_newline(&self) -> bool {
        self.bytes.contains(&b'\n')
    }

    /// Returns the next complete line, without its newline; `None` if it is not complete yet.
    pub(super) fn take_line(&mut self) -> Result<Option<Vec<u8>>, WireError> {
        let unsearched = self.bytes.get(self.searched..).unwrap_or_default();
        let Some(found) = unsearched.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return if self.searched > MAX_LINE { Err(WireError::TooLong) } else { Ok(None) };
        };
        let end = self.searched + found;
        self.searched = 0;
        let rest = self.bytes.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.bytes, rest);
        line.truncate(end);
        if line.len() > MAX_LINE { Err(WireError::TooLong) } else { Ok(Some(line)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// xorshift64*: enough to wander through inputs, and the same in every run.
    struct WireRandom(u64);

    impl WireRandom {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
        }

        fn below(&mut self, limit: usize) -> usize {
            usize::try_from(self.next() % u64::try_from(limit).unwrap()).unwrap()
        }
    }

    fn strip(line: &str) -> &[u8] {
        line.strip_suffix('\n').unwrap().as_bytes()
    }

    const REQUESTS: [PmiRequest<'static>; 12] = [
        PmiRequest::Init { version: 1, subversion: 1 },
        PmiRequest::GetMaxes,
        PmiRequest::GetAppnum,
        PmiRequest::GetUniverseSize,
        PmiRequest::GetMyKvsname,
        PmiRequest::Put { kvsname: "k", key: "a", value: "b=c" },
        PmiRequest::Get { kvsname: "k", key: "a" },
        PmiRequest::BarrierIn,
        PmiRequest::Finalize,
        PmiRequest::Abort { code: -3 },
        PmiRequest::Join { version: 1, incarnation: 2, address: "1.a.b" },
        PmiRequest::Member { rank: 3 },
    ];

    const REPLIES: [PmiReply<'static>; 14] = [
        PmiReply::Init { code: 0, version: 1, subversion: 1 },
        PmiReply::Maxes { kvsname: 256, key: 64, value: 1024 },
        PmiReply::Appnum { appnum: 0 },
        PmiReply::UniverseSize { size: -1 },
        PmiReply::MyKvsname { kvsname: "kvs_0" },
        PmiReply::Put { code: -1, message: "full" },
        PmiReply::Get { code: 0, message: "success", value: Some("x") },
        PmiReply::Get { code: -1, message: "key_a_not_found", value: None },
        PmiReply::BarrierOut { code: 0, message: "no_reason_given" },
        PmiReply::BarrierOut { code: -1, message: "rank_2_is_gone" },
        PmiReply::FinalizeAck { code: 0 },
        PmiReply::Joined { code: 0, message: "success", turn: 9 },
        PmiReply::Member { incarnation: 1, turn: 9, address: Some("1.a.b") },
        PmiReply::Member { incarnation: 0, turn: 0, address: None },
    ];

    #[test]
    fn encoded_lines_are_parsed_again() {
        for request in REQUESTS {
            assert_eq!(PmiRequest::parse(strip(&request.encode())), Ok(request));
        }
        for reply in REPLIES {
            assert_eq!(PmiReply::parse(strip(&reply.encode())), Ok(reply));
        }
    }

    #[test]
    fn lines_of_hydra_are_understood() {
        let line = b"cmd=get_result rc=-1 msg=key_k0_not_found value=unknown";
        let reply = PmiReply::Get { code: -1, message: "key_k0_not_found", value: Some("unknown") };
        assert_eq!(PmiReply::parse(line), Ok(reply));
        assert_eq!(
            PmiReply::parse(b"cmd=universe_size size=-1 "),
            Ok(PmiReply::UniverseSize { size: -1 }),
            "a trailing space is harmless"
        );
    }

    #[test]
    fn malformed_lines_are_refused() {
        let long = vec![b'x'; MAX_LINE + 1];
        let many = format!("cmd=finalize{}", (0..MAX_TOKENS).map(|i| format!(" k{i}=v")).collect::<String>());
        let cases: [(&[u8], WireError); 10] = [
            (b"", WireError::NoCommand),
            (b"key=a cmd=get", WireError::NoCommand),
            (b"cmd=spawn", WireError::Unknown("spawn".into())),
            (b"cmd=get kvsname=k", WireError::MissingField { command: "get".into(), field: "key" }),
            (b"cmd=get kvsname=k key=a key=b", WireError::Duplicate("key".into())),
            (b"cmd=get kvsname", WireError::BadToken("kvsname".into())),
            (b"cmd=get\xff", WireError::BadByte(0xff)),
            (b"cmd=abort exitcode=9999999999", {
                WireError::BadNumber { field: "exitcode", value: "9999999999".into() }
            }),
            (&long, WireError::TooLong),
            (many.as_bytes(), WireError::TooManyTokens),
        ];
        for (line, error) in cases {
            assert_eq!(PmiRequest::parse(line), Err(error));
        }
    }

    #[test]
    fn keys_and_values_that_cannot_be_carried_are_recognised() {
        assert!(is_key("card-3") && is_value("a=b"));
        for bad in ["", "a b", "a\n", "a\0", "é"] {
            assert!(!is_key(bad) && !is_value(bad), "{bad:?}");
        }
        assert!(!is_key("a=b"));
    }

    #[test]
    fn lines_are_put_together_whatever_the_pieces() {
        let mut random = WireRandom(0x1eed);
        let text: Vec<u8> = REQUESTS.iter().flat_map(|request| request.encode().into_bytes()).collect();
        for _ in 0..500 {
            let mut buffer = LineBuffer::default();
            let (mut at, mut lines) = (0, Vec::new());
            while at < text.len() {
                let end = text.len().min(at + 1 + random.below(40));
                buffer.push(&text[at..end]);
                at = end;
                while let Some(line) = buffer.take_line().unwrap() {
                    lines.push(line);
                }
            }
            assert!(buffer.is_empty());
            assert_eq!(lines.len(), REQUESTS.len());
            for (line, request) in lines.iter().zip(REQUESTS) {
                assert_eq!(PmiRequest::parse(line), Ok(request));
            }
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut buffer = LineBuffer::default();
        buffer.push(&vec![b'x'; MAX_LINE]);
        assert_eq!(buffer.take_line(), Ok(None));
        buffer.push(b"y");
        assert_eq!(buffer.take_line(), Err(WireError::TooLong));
    }

    /// Damages well-formed lines and assembles lines from fragments. Any answer is valid, but there must be
    /// one, and an accepted line must mean the same when it is sent on.
    #[test]
    fn no_line_breaks_the_parser() {
        const FRAGMENTS: [&str; 12] = [
            "cmd=",
            "get",
            "put",
            "=",
            " ",
            "key=",
            "value=",
            "rc=",
            "-1",
            "kvsname=k",
            "barrier_out",
            "\u{e9}",
        ];
        let mut random = WireRandom(0xf022);
        for _ in 0..60_000 {
            let mut line: Vec<u8> = match random.below(3) {
                0 => strip(&REQUESTS[random.below(REQUESTS.len())].encode()).to_vec(),
                1 => strip(&REPLIES[random.below(REPLIES.len())].encode()).to_vec(),
                _ => (0..random.below(12))
                    .flat_map(|_| FRAGMENTS[random.below(FRAGMENTS.len())].bytes())
                    .collect(),
            };
            for _ in 0..random.below(4) {
                if !line.is_empty() {
                    let at = random.below(line.len());
                    line[at] = u8::try_from(random.below(256)).unwrap();
                }
            }
            if let Ok(request) = PmiRequest::parse(&line) {
                assert_eq!(PmiRequest::parse(strip(&request.encode())), Ok(request));
            }
            if let Ok(reply) = PmiReply::parse(&line) {
                let again = reply.encode();
                assert!(PmiReply::parse(strip(&again)).is_ok(), "{again:?}");
            }
        }
    }
}
