//! The names of hosts.

use std::ffi::CStr;
use std::net::Ipv4Addr;

/// Bytes of the longest name, with its final zero.
const NAME_BYTES: usize = 1025;

/// Returns the name of a host, as the system resolves it; `None` if it has none.
pub fn name_of_host(address: Ipv4Addr) -> Option<String> {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) },
        sin_zero: [0; 8],
    };
    let mut name = [0_u8; NAME_BYTES];
    // SAFETY: the address and the name live here and have the lengths announced; no service is wanted.
    let result = unsafe {
        libc::getnameinfo(
            (&raw const address).cast(),
            size_of::<libc::sockaddr_in>() as libc::socklen_t,
            name.as_mut_ptr().cast(),
            NAME_BYTES as libc::socklen_t,
            std::ptr::null_mut(),
            0,
            libc::NI_NAMEREQD,
        )
    };
    let name = CStr::from_bytes_until_nul(&name).ok().filter(|_| result == 0)?;
    name.to_str().ok().map(str::to_owned)
}
