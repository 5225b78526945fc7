//! One connection of a call, and its messages. It never blocks.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;

use nemesia_core::wire::call::{CALL_MESSAGE_BYTES, CallBytes, CallMessage, CallMessageError};

use super::refusal;
use crate::os::Watch;
use crate::tcp::{self, Socket, SocketOptions};

/// Why nothing more comes from a connection.
#[derive(Debug)]
pub(super) enum CallLoss {
    /// No process listens at the address.
    NotListening,
    /// The other process has closed the connection, or has died.
    Ended,
    /// The network has lost the connection.
    Network(io::Error),
    /// What came is not a message of a call.
    Nonsense(CallMessageError),
}

/// A connection of a call.
#[derive(Debug)]
pub(super) struct CallSocket {
    socket: Socket,
    bytes: CallBytes,
    /// The number of bytes of the next message that have come.
    have: usize,
    attended: bool,
}

impl CallSocket {
    const fn new(socket: Socket) -> Self {
        Self { socket, bytes: [0; CALL_MESSAGE_BYTES], have: 0, attended: false }
    }

    /// Returns the connection that a listener has accepted, with these options.
    pub(super) fn accepted(
        (stream, from): (TcpStream, SocketAddr),
        sockets: SocketOptions,
    ) -> io::Result<Self> {
        Socket::new(stream, from, sockets).map(Self::new)
    }

    /// Begins to connect, with these options.
    pub(super) fn connect(to: SocketAddr, sockets: SocketOptions) -> io::Result<Self> {
        tcp::connect(to, sockets).map(Self::new)
    }

    /// Returns the connection itself.
    pub(super) const fn stream_mut(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Returns whether the other end, or its kernel, has taken the connection. It may have ended since.
    pub(super) fn is_connected(&self) -> bool {
        self.socket.stream().peer_addr().is_ok()
    }

    /// Wakes this process when a message comes.
    pub(super) fn attend(&mut self, watch: &Watch) {
        if !self.attended {
            // Without room in the set, the next look finds the message.
            self.attended = watch.attend(self.socket.as_fd()).is_ok();
        }
    }

    /// Takes the connection out of the set, before it is closed.
    pub(super) fn stop(&mut self, watch: &Watch) {
        if std::mem::take(&mut self.attended) {
            watch.unattend(self.socket.as_fd());
        }
    }

    /// Returns the next message; `None` if it has not come whole.
    pub(super) fn receive(&mut self) -> Result<Option<CallMessage>, CallLoss> {
        while self.have < CALL_MESSAGE_BYTES {
            match self.socket.stream().read(&mut self.bytes[self.have..]) {
                Ok(0) => return Err(CallLoss::Ended),
                Ok(count) => self.have += count,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(None),
                    ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionRefused => return Err(CallLoss::NotListening),
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return Err(CallLoss::Ended),
                    _ => return Err(CallLoss::Network(error)),
                },
            }
        }
        self.have = 0;
        CallMessage::decode(&self.bytes).map(Some).map_err(CallLoss::Nonsense)
    }

    /// Sends a message. Returns `false` if the connection does not take it at once: it is lost, or its other end reads
    /// nothing.
    pub(super) fn send(&mut self, message: &CallMessage) -> bool {
        let mut stream = self.socket.stream();
        matches!(stream.write(&message.encode()), Ok(CALL_MESSAGE_BYTES))
    }

    /// Sends a refusal, the last message.
    pub(super) fn refuse(&mut self, problem: &str) {
        self.send(&refusal(problem));
        // The other end sees a lost connection if the message does not reach it.
        let _ = self.socket.stream().shutdown(Shutdown::Write);
    }
}
