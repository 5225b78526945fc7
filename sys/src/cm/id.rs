//! Identifiers of the manager: a connection, or a listener.

use std::ffi::CStr;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use rdma_core_sys as raw;

use super::address::{from_c, to_c};
use super::channel::Channel;

use crate::os::descriptor::occupy_standard;
use crate::rdma::{RETRIES, RNR_FOREVER, VerbsError, attributes, last_errno, manager};

/// The parameters of a request or an acceptance.
#[derive(Clone, Copy, Debug)]
pub struct CmAnswer<'a> {
    /// The private bytes for the peer.
    pub private: &'a [u8],
    /// The number of the queue pair.
    pub pair: u32,
    /// The reads of the peer that this side serves at once.
    pub reads: u8,
    /// The reads that this side has under way at once.
    pub depth: u8,
    /// Whether the queue pair uses a shared receive queue.
    pub shared: bool,
}

/// An identifier. Dropping it destroys it: an unanswered request is refused, and a connection ends.
pub struct Id {
    channel: Arc<Channel>,
    id: NonNull<raw::rdma_cm_id>,
}

// SAFETY: librdmacm may be called from any thread; the identifier is this value's own.
unsafe impl Send for Id {}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Id").finish_non_exhaustive()
    }
}

/// The ports that are tried for one identifier.
pub(crate) const MOST_PLACES: u8 = 32;

/// Returns whether a port of TCP is in use. An iWARP device needs that of the number which the manager has chosen, and
/// the manager knows only its own.
pub(crate) fn is_taken(error: &VerbsError) -> bool {
    matches!(error.code(), libc::EADDRINUSE | libc::EADDRNOTAVAIL)
}

fn checked(what: &'static str, code: i32) -> Result<(), VerbsError> {
    if code == 0 { Ok(()) } else { Err(VerbsError::manager(what)) }
}

fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX).max(1)
}

impl Id {
    /// Makes an identifier whose events carry `token`.
    ///
    /// # Errors
    /// The kernel has no more.
    pub fn new(channel: &Arc<Channel>, token: usize) -> Result<Self, VerbsError> {
        let mut id = ptr::null_mut();
        let _occupied = occupy_standard();
        // SAFETY: the channel exists, and `id` may be written. The token is a number that is never
        // dereferenced.
        let code = unsafe {
            let token = ptr::without_provenance_mut(token);
            (manager()?.rdma_create_id)(channel.raw(), &raw mut id, token, raw::RDMA_PS_TCP)
        };
        checked("an identifier", code)?;
        let id = NonNull::new(id).ok_or(VerbsError::Manager { what: "an identifier", code: libc::EINVAL })?;
        Ok(Self { channel: Arc::clone(channel), id })
    }

    /// As [`Id::new`], with the traffic class of its packets, if there is one.
    pub(crate) fn with_class(
        channel: &Arc<Channel>,
        token: usize,
        class: Option<u8>,
    ) -> Result<Self, VerbsError> {
        let id = Self::new(channel, token)?;
        class.map_or(Ok(()), |class| id.set_traffic_class(class))?;
        Ok(id)
    }

    /// Takes over the identifier of a request.
    ///
    /// # Safety
    /// It is null, or came with a request and has no owner yet.
    pub(super) unsafe fn adopt(channel: &Arc<Channel>, id: *mut raw::rdma_cm_id) -> Option<Self> {
        NonNull::new(id).map(|id| Self { channel: Arc::clone(channel), id })
    }

    fn raw(&self) -> *mut raw::rdma_cm_id {
        self.id.as_ptr()
    }

    /// Sets the number that its events carry.
    pub fn set_token(&mut self, token: usize) {
        // SAFETY: the identifier exists; the library only returns the number.
        unsafe { (*self.raw()).context = ptr::without_provenance_mut(token) };
    }

    /// Binds it to a local address; port 0 means any.
    ///
    /// # Errors
    /// There is no such address, or it is in use.
    pub fn bind(&self, address: SocketAddr) -> Result<(), VerbsError> {
        let mut address = to_c(address);
        // librdmacm opens the device of the address.
        let _occupied = occupy_standard();
        // SAFETY: the identifier and the address exist.
        checked("binding an address", unsafe {
            (manager()?.rdma_bind_addr)(self.raw(), (&raw mut address).cast())
        })
    }

    /// Makes an identifier that listens at any port of a local address, as [`Id::new`], [`Id::set_traffic_class`],
    /// [`Id::bind`] and [`Id::listen`] do. It takes another port if a socket has the one that the manager chose.
    ///
    /// # Errors
    /// There is no such address, or the kernel has no more.
    pub fn listen_at(
        channel: &Arc<Channel>,
        token: usize,
        (address, class): (IpAddr, Option<u8>),
        backlog: u32,
    ) -> Result<Self, VerbsError> {
        let mut places = 0;
        loop {
            places += 1;
            let id = Self::with_class(channel, token, class)?;
            id.bind(SocketAddr::new(address, 0))?;
            match id.listen(backlog) {
                Err(error) if is_taken(&error) && places < MOST_PLACES => {}
                done => return done.map(|()| id),
            }
        }
    }

    /// Listens for requests, at most `backlog` at once.
    ///
    /// # Errors
    /// The address is in use.
    pub fn listen(&self, backlog: u32) -> Result<(), VerbsError> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // SAFETY: the identifier exists.
        checked("listening", unsafe { (manager()?.rdma_listen)(self.raw(), backlog) })
    }

    /// Resolves an address, from a local one. An event reports the result.
    ///
    /// # Errors
    /// There is no route.
    pub fn resolve(&self, from: SocketAddr, to: SocketAddr, within: Duration) -> Result<(), VerbsError> {
        let (mut from, mut to) = (to_c(from), to_c(to));
        let (from, to) = ((&raw mut from).cast(), (&raw mut to).cast());
        // SAFETY: the identifier and both addresses exist.
        let code = unsafe { (manager()?.rdma_resolve_addr)(self.raw(), from, to, milliseconds(within)) };
        checked("looking up an address", code)
    }

    /// Resolves the route to the address. An event reports the result.
    ///
    /// # Errors
    /// There is none.
    pub fn route(&self, within: Duration) -> Result<(), VerbsError> {
        // SAFETY: the identifier exists.
        checked("looking up a route", unsafe {
            (manager()?.rdma_resolve_route)(self.raw(), milliseconds(within))
        })
    }

    /// Returns the attributes of a queue pair for a state, and their mask; an empty mask where iWARP changes
    /// states itself.
    ///
    /// # Errors
    /// The connection has not reached that state.
    pub(crate) fn attributes(&self, state: raw::ibv_qp_state) -> Result<(raw::ibv_qp_attr, u32), VerbsError> {
        let ask = manager()?.rdma_init_qp_attr.ok_or(VerbsError::Old { what: "rdma_init_qp_attr" })?;
        let mut attr = attributes(state);
        let mut mask = 0;
        // SAFETY: the identifier exists, and both variables may be written.
        checked("the state of a queue pair", unsafe { ask(self.raw(), &raw mut attr, &raw mut mask) })?;
        Ok((attr, mask.cast_unsigned()))
    }

    fn parameters(answer: &CmAnswer<'_>) -> raw::rdma_conn_param {
        raw::rdma_conn_param {
            private_data: answer.private.as_ptr().cast(),
            private_data_len: u8::try_from(answer.private.len()).unwrap_or(0),
            responder_resources: answer.reads,
            initiator_depth: answer.depth,
            flow_control: 1,
            retry_count: RETRIES,
            rnr_retry_count: RNR_FOREVER,
            srq: answer.shared.into(),
            qp_num: answer.pair,
        }
    }

    /// Sends the request to the peer. An event reports the answer.
    ///
    /// # Errors
    /// The request cannot be sent. iWARP may report at once that no process listens (`ECONNREFUSED`).
    pub fn connect(&self, answer: &CmAnswer<'_>) -> Result<(), VerbsError> {
        let mut parameters = Self::parameters(answer);
        // SAFETY: the identifier and the parameters exist; the data behind the pointers is copied.
        checked("connecting", unsafe { (manager()?.rdma_connect)(self.raw(), &raw mut parameters) })
    }

    /// Accepts a request. An event reports when the connection is up.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn accept(&self, answer: &CmAnswer<'_>) -> Result<(), VerbsError> {
        let mut parameters = Self::parameters(answer);
        // SAFETY: the identifier and the parameters exist; the data behind the pointers is copied.
        checked("accepting", unsafe { (manager()?.rdma_accept)(self.raw(), &raw mut parameters) })
    }

    /// Refuses a request.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn reject(&self, private: &[u8]) -> Result<(), VerbsError> {
        let len = u8::try_from(private.len()).unwrap_or(0);
        // SAFETY: the identifier and the bytes exist; the bytes are copied.
        checked("refusing", unsafe { (manager()?.rdma_reject)(self.raw(), private.as_ptr().cast(), len) })
    }

    /// Confirms the peer's acceptance.
    ///
    /// # Errors
    /// The peer is gone, or the library is too old.
    pub fn establish(&self) -> Result<(), VerbsError> {
        let establish = manager()?.rdma_establish.ok_or(VerbsError::Old { what: "rdma_establish" })?;
        // SAFETY: the identifier exists.
        checked("confirming", unsafe { establish(self.raw()) })
    }

    /// Ends the connection and notifies the peer. Does nothing if it has ended.
    pub fn disconnect(&self) {
        if let Ok(manager) = manager() {
            // SAFETY: the identifier exists. A failure means that there is nothing to end.
            unsafe { (manager.rdma_disconnect)(self.raw()) };
        }
    }

    /// Returns the local address.
    pub fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier exists, and its address has the length of its family.
        unsafe { from_c(raw::inline::rdma_get_local_addr(self.raw())) }
    }

    /// Returns the peer's address, as the manager knows it.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier exists, and its address has the length of its family.
        unsafe { from_c(raw::inline::rdma_get_peer_addr(self.raw())) }
    }

    /// Asks for a traffic class of the packets of its connection. Devices of iWARP may ignore it.
    ///
    /// # Errors
    /// The library refuses it.
    pub fn set_traffic_class(&self, class: u8) -> Result<(), VerbsError> {
        let (level, name) = (raw::RDMA_OPTION_ID.cast_signed(), raw::RDMA_OPTION_ID_TOS.cast_signed());
        let mut class = class;
        // SAFETY: the identifier exists, and the option is one byte, which is copied.
        checked("setting a traffic class", unsafe {
            (manager()?.rdma_set_option)(self.raw(), level, name, (&raw mut class).cast(), size_of::<u8>())
        })
    }

    /// Returns the device to which the address leads; `None` if it is not bound to one.
    pub fn place(&self) -> Option<DevicePlace> {
        // SAFETY: the identifier exists; its context is open for as long, and has a device with a name. Any bytes are a
        // GID and a key, which the library has stored in the identifier.
        unsafe {
            let device = (*self.raw()).verbs.as_ref()?.device;
            let name = CStr::from_ptr((*device).name.as_ptr()).to_string_lossy().into_owned();
            let address = (*self.raw()).route.addr.addr.ibaddr;
            let (gid, key) = (address.sgid.raw, u16::from_be(address.pkey));
            Some(DevicePlace { device: name, port: (*self.raw()).port_num, gid, partition_key: key })
        }
    }
}

/// The place to which a local address leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePlace {
    /// The name of the device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// The GID from which connections come; meaningless on iWARP.
    pub gid: [u8; 16],
    /// The partition of the interface; meaningless on iWARP.
    pub partition_key: u16,
}

impl Drop for Id {
    fn drop(&mut self) {
        if let Ok(manager) = manager() {
            // SAFETY: it is this value's own. All its events were acknowledged, so this call does not wait for
            // them.
            unsafe { (manager.rdma_destroy_id)(self.raw()) };
        }
        // Dropped after its identifiers.
        let _ = &self.channel;
    }
}

/// Returns the device to which a local address leads.
///
/// # Errors
/// It leads to none, or there is no connection manager.
pub fn place_of(address: IpAddr) -> Result<DevicePlace, VerbsError> {
    place(&Channel::new()?, address)
}

fn place(channel: &Arc<Channel>, address: IpAddr) -> Result<DevicePlace, VerbsError> {
    let id = Id::new(channel, 0)?;
    id.bind(SocketAddr::new(address, 0))?;
    id.place().ok_or(VerbsError::Manager { what: "finding the device of an address", code: libc::ENODEV })
}

/// Returns the IP addresses of this host that lead to an RDMA device. Loopback and link-local addresses are left out:
/// no peer elsewhere could use them.
///
/// # Errors
/// There is no connection manager, or the kernel reports no addresses.
pub fn local_addresses() -> Result<Vec<(IpAddr, DevicePlace)>, VerbsError> {
    let channel = Channel::new()?;
    let mut list = ptr::null_mut();
    // SAFETY: `list` may be written.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(VerbsError::System { what: "listing addresses", code: last_errno() });
    }
    let mut addresses = Vec::new();
    let mut next = list;
    // SAFETY: the list is the library's, and is freed below.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: as above; an address is null, or has the length of its family.
        addresses.extend(unsafe { from_c(entry.ifa_addr) }.map(|address| address.ip()));
        next = entry.ifa_next;
    }
    // SAFETY: the list is freed once.
    unsafe { libc::freeifaddrs(list) };
    addresses.retain(|address| match address {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    });
    let place = |address| place(&channel, address).ok().map(|place| (address, place));
    Ok(addresses.into_iter().filter_map(place).collect())
}
