//! An open device, its ports, and its asynchronous events.

use std::ffi::{CStr, OsStr};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::os::descriptor::occupy_standard;
use crate::rdma::{VerbsError, last_errno, set_nonblocking, verbs};
use rdma_core_sys as raw;

/// The transport of a device. An unknown number is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceTransport {
    /// InfiniBand's transport, also over Ethernet (`RoCE`).
    InfiniBand,
    /// iWARP: RDMA over TCP.
    Iwarp,
    /// Another transport, without reliable connections that this module supports.
    Other(i32),
}

impl fmt::Display for DeviceTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::Iwarp => f.write_str("iWARP"),
            Self::Other(code) => write!(f, "transport {code}"),
        }
    }
}

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// An InfiniBand fabric: addressed by LID.
    InfiniBand,
    /// Ethernet: addressed by GID.
    Ethernet,
    /// Another link layer.
    Other(u8),
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its position in the table.
    pub index: u32,
    /// The identifier.
    pub bytes: [u8; 16],
    /// 0 InfiniBand (and iWARP), 1 `RoCE` v1, 2 `RoCE` v2; `None` if the library or the kernel does not report
    /// it.
    pub kind: Option<u32>,
}

impl Gid {
    /// Returns the IP address in it, encoded as for `RoCE` v2.
    pub fn address(&self) -> IpAddr {
        let address = Ipv6Addr::from(self.bytes);
        address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
    }

    /// Returns whether the entry is in use.
    pub fn is_set(&self) -> bool {
        self.bytes != [0; 16]
    }
}

/// The present attributes of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// `IBV_PORT_ACTIVE` is 4.
    pub state: u32,
    /// The link layer.
    pub link: LinkLayer,
    /// The path MTU as a code: 1 is 256 bytes, 5 is 4096.
    pub mtu: u32,
    /// The longest message, in bytes.
    pub message_bytes: u32,
    /// Its address in an InfiniBand fabric.
    pub lid: u16,
    /// The size of the GID table.
    pub gids: u32,
    /// Whether every packet needs a global header, by which GIDs find the peer: on Ethernet, and on some ports of
    /// InfiniBand, such as virtual functions.
    pub needs_gid: bool,
}

impl PortAttributes {
    /// Returns whether the port carries messages.
    pub fn is_active(&self) -> bool {
        self.state == raw::IBV_PORT_ACTIVE
    }
}

/// An asynchronous event (`ibv_get_async_event(3)`) of a device, a port or a queue. The code is the event's
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// An event of a queue pair.
    Pair {
        /// Its number.
        number: u32,
        /// The event.
        code: u32,
    },
    /// An event of a port.
    Port {
        /// Its number.
        port: u32,
        /// The event.
        code: u32,
    },
    /// An event of the device, or of a queue without which nothing works.
    Device {
        /// The event.
        code: u32,
    },
    /// An event that needs no reaction, or that is unknown here.
    Other {
        /// The event.
        code: u32,
    },
}

/// An open device. It is closed when its last part is dropped.
pub struct Device {
    context: NonNull<raw::ibv_context>,
    name: String,
    attributes: raw::ibv_device_attr,
    transport: DeviceTransport,
    /// The directory by which the kernel shows that processes can use it; `None` if there was none from the start.
    shown: Option<PathBuf>,
}

// SAFETY: libibverbs may be called from any thread (`ibv_alloc_td(3)`: "by default all verbs objects are safe for
// multi-threaded access"), and the context is this value's own.
unsafe impl Send for Device {}
// SAFETY: as above; nothing is written here after `open`.
unsafe impl Sync for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name)
            .field("transport", &self.transport)
            .finish_non_exhaustive()
    }
}

/// The library's list of devices.
struct List {
    list: *mut *mut raw::ibv_device,
    count: usize,
}

impl List {
    fn new() -> Result<Self, VerbsError> {
        let mut count = 0;
        let _occupied = occupy_standard();
        // SAFETY: `count` may be written.
        let list = unsafe { (verbs()?.ibv_get_device_list)(&raw mut count) };
        if list.is_null() {
            let code = last_errno();
            if code == libc::ENOSYS {
                let why = "the kernel has no RDMA: load its module ib_uverbs".into();
                return Err(VerbsError::NoDevice { why });
            }
            return Err(VerbsError::System { what: "listing RDMA devices", code });
        }
        Ok(Self { list, count: usize::try_from(count).unwrap_or(0) })
    }

    fn iter(&self) -> impl Iterator<Item = *mut raw::ibv_device> + '_ {
        // SAFETY: the library says how many there are.
        (0..self.count).map(|at| unsafe { *self.list.add(at) })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: the list is the library's, and is freed once. Devices that were opened stay.
            unsafe { (verbs.ibv_free_device_list)(self.list) };
        }
    }
}

/// # Safety
/// `device` is of a list that was not freed, or of an open context.
unsafe fn name_of(device: *mut raw::ibv_device) -> String {
    // SAFETY: the caller's promise; the library terminates names with zero.
    unsafe { CStr::from_ptr((*device).name.as_ptr()) }.to_string_lossy().into_owned()
}

impl Device {
    /// Returns the names of this machine's devices.
    ///
    /// # Errors
    /// The library is absent, or the kernel reports no list.
    pub fn names() -> Result<Vec<String>, VerbsError> {
        let list = List::new()?;
        // SAFETY: the list exists.
        Ok(list.iter().map(|device| unsafe { name_of(device) }).collect())
    }

    /// Opens a device.
    ///
    /// # Errors
    /// No device has that name, or it cannot be opened, in most cases for lack of rights to `/dev/infiniband`.
    pub fn open(name: &str) -> Result<Arc<Self>, VerbsError> {
        let verbs = verbs()?;
        let failed = |what, code| VerbsError::Device { device: name.into(), what, code };
        let list = List::new()?;
        // SAFETY: the list exists.
        let device = list.iter().find(|device| unsafe { name_of(*device) } == name);
        let device = device.ok_or_else(|| failed("opening it", libc::ENODEV))?;
        let _occupied = occupy_standard();
        // SAFETY: the device is of the list.
        let context = NonNull::new(unsafe { (verbs.ibv_open_device)(device) })
            .ok_or_else(|| failed("opening it, which needs rights to /dev/infiniband", last_errno()))?;
        // SAFETY: the device is of the list; zeros are values of C's structure.
        let (transport, attributes) = unsafe { ((*device).transport_type, std::mem::zeroed()) };
        let transport = match transport {
            raw::IBV_TRANSPORT_IB => DeviceTransport::InfiniBand,
            raw::IBV_TRANSPORT_IWARP => DeviceTransport::Iwarp,
            other => DeviceTransport::Other(other),
        };
        // SAFETY: as above; the library terminates the path with zero.
        let shown = unsafe { CStr::from_ptr((*device).dev_path.as_ptr()) };
        let shown = Some(PathBuf::from(OsStr::from_bytes(shown.to_bytes()))).filter(|path| path.exists());
        let mut device = Self { context, name: name.into(), attributes, transport, shown };
        // SAFETY: the context is open and the attributes may be written.
        let code = unsafe { (verbs.ibv_query_device)(context.as_ptr(), &raw mut device.attributes) };
        if code != 0 {
            return Err(failed("asking what it can do", code.abs()));
        }
        device.unblock()?;
        Ok(Arc::new(device))
    }

    /// Makes the query for events non-blocking.
    fn unblock(&self) -> Result<(), VerbsError> {
        set_nonblocking(self.event_descriptor()).map_err(|code| self.error("its descriptor for events", code))
    }

    /// Returns its name, such as `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the kernel has begun to remove it. Most devices report that as an event. Of the software devices
    /// only RDMA-CM reports it.
    pub(crate) fn is_removed(&self) -> bool {
        // Without the directory above it, nothing is known: this process may have left that root.
        let is_gone = |path: &PathBuf| {
            matches!(path.try_exists(), Ok(false)) && path.parent().is_some_and(Path::exists)
        };
        self.shown.as_ref().is_some_and(is_gone)
    }

    /// Returns its transport.
    pub fn transport(&self) -> DeviceTransport {
        self.transport
    }

    /// Returns its limits, as the library reports them.
    pub fn attributes(&self) -> &raw::ibv_device_attr {
        &self.attributes
    }

    pub(crate) fn context(&self) -> *mut raw::ibv_context {
        self.context.as_ptr()
    }

    pub(crate) fn error(&self, what: &'static str, code: i32) -> VerbsError {
        VerbsError::Device { device: self.name.clone(), what, code: code.saturating_abs() }
    }

    /// Returns the error of a call that returned null.
    pub(crate) fn last_error(&self, what: &'static str) -> VerbsError {
        self.error(what, last_errno())
    }

    /// Returns the present attributes of a port. Ports are counted from 1.
    ///
    /// # Errors
    /// There is no such port, or the device is gone.
    pub fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        let mut attr = std::mem::MaybeUninit::<raw::ibv_port_attr>::zeroed();
        // SAFETY: the context is open, and the structure, which zeros are a value of, may be written.
        let (code, attr) =
            unsafe { (verbs()?.ibv_query_port(self.context(), port, attr.as_mut_ptr()), attr.assume_init()) };
        if code != 0 {
            return Err(self.error("asking what its port can do", code));
        }
        let link = match (u32::from(attr.link_layer), self.transport) {
            (raw::IBV_LINK_LAYER_ETHERNET, _) | (_, DeviceTransport::Iwarp) => LinkLayer::Ethernet,
            (raw::IBV_LINK_LAYER_INFINIBAND | raw::IBV_LINK_LAYER_UNSPECIFIED, _) => LinkLayer::InfiniBand,
            (other, _) => LinkLayer::Other(other as u8),
        };
        Ok(PortAttributes {
            state: attr.state,
            link,
            mtu: attr.active_mtu,
            message_bytes: attr.max_msg_sz,
            lid: attr.lid,
            gids: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
            needs_gid: link != LinkLayer::InfiniBand
                || u32::from(attr.flags) & raw::IBV_QPF_GRH_REQUIRED != 0,
        })
    }

    /// Returns the GIDs of a port that are in use.
    ///
    /// # Errors
    /// There is no such port, or the device is gone.
    pub fn gids(&self, port: u8) -> Result<Vec<Gid>, VerbsError> {
        let verbs = verbs()?;
        let mut found = Vec::new();
        // No device has more than a thousand.
        for index in 0..self.port(port)?.gids.min(1024) {
            let mut entry = std::mem::MaybeUninit::<raw::ibv_gid_entry>::zeroed();
            // SAFETY: the context is open, and the structure, which zeros are a value of, may be written.
            let (code, entry) = unsafe {
                let code = verbs.ibv_query_gid_ex(self.context(), port.into(), index, entry.as_mut_ptr(), 0);
                (code, entry.assume_init())
            };
            let gid = if code == 0 {
                // SAFETY: any bytes are a value.
                Gid { index, bytes: unsafe { entry.gid.raw }, kind: Some(entry.gid_type) }
            } else {
                let mut gid = raw::ibv_gid { raw: [0; 16] };
                let index_int = i32::try_from(index).unwrap_or(i32::MAX);
                // SAFETY: the context is open, and the GID may be written.
                if unsafe { (verbs.ibv_query_gid)(self.context(), port, index_int, &raw mut gid) } != 0 {
                    continue;
                }
                // SAFETY: any bytes are a value.
                Gid { index, bytes: unsafe { gid.raw }, kind: None }
            };
            if gid.is_set() {
                found.push(gid);
            }
        }
        Ok(found)
    }

    /// Returns a descriptor that is readable when [`Device::next_event`] has an event.
    pub fn event_descriptor(&self) -> i32 {
        // SAFETY: the context is open.
        unsafe { (*self.context()).async_fd }
    }

    /// Returns the next event, if there is one.
    pub fn next_event(&self) -> Option<AsyncEvent> {
        let verbs = verbs().ok()?;
        let mut event = std::mem::MaybeUninit::<raw::ibv_async_event>::zeroed();
        // SAFETY: the context is open, and the structure, which zeros are a value of, may be written. The descriptor
        // does not block.
        let event = unsafe {
            if (verbs.ibv_get_async_event)(self.context(), event.as_mut_ptr()) != 0 {
                return None;
            }
            event.assume_init()
        };
        let code = event.event_type;
        let found = match code {
            raw::IBV_EVENT_QP_FATAL..=raw::IBV_EVENT_PATH_MIG_ERR | raw::IBV_EVENT_QP_LAST_WQE_REACHED => {
                // SAFETY: for these events the library passes the queue pair, and destroying that waits for the
                // acknowledgement below.
                AsyncEvent::Pair { number: unsafe { (*event.element.qp).qp_num }, code }
            }
            raw::IBV_EVENT_PORT_ACTIVE..=raw::IBV_EVENT_SM_CHANGE
            | raw::IBV_EVENT_CLIENT_REREGISTER
            | raw::IBV_EVENT_GID_CHANGE => {
                // SAFETY: for these events the library passes the port's number.
                AsyncEvent::Port { port: unsafe { event.element.port_num }.cast_unsigned(), code }
            }
            raw::IBV_EVENT_CQ_ERR | raw::IBV_EVENT_DEVICE_FATAL | raw::IBV_EVENT_SRQ_ERR => {
                AsyncEvent::Device { code }
            }
            _ => AsyncEvent::Other { code },
        };
        let mut event = event;
        // SAFETY: the event came from the library, and is acknowledged once.
        unsafe { (verbs.ibv_ack_async_event)(&raw mut event) };
        Some(found)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: every user of the context holds this value, so there is no user left. If the device was
            // pulled out, closing fails, without consequence.
            unsafe { (verbs.ibv_close_device)(self.context()) };
        }
    }
}
