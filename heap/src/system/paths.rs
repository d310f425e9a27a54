//! Expands paths from the configuration, in buffers of fixed size.

use crate::system::os;
use crate::system::text::Text;

/// The longest accepted path, its final NUL included.
pub const PATH_BYTES: usize = 1024;

/// The path with each `%p` replaced by the process id, and a final NUL; `None` if it does not fit.
pub fn expand<'a>(path: &[u8], out: &'a mut [u8; PATH_BYTES]) -> Option<&'a [u8]> {
    let id = Text::<16>::of(format_args!("{}", os::process_id()));
    let (mut length, mut i) = (0, 0);
    while i < path.len() {
        let (piece, step): (&[u8], usize) =
            if path[i..].starts_with(b"%p") { (id.bytes(), 2) } else { (&path[i..=i], 1) };
        out.get_mut(length..length + piece.len())?.copy_from_slice(piece);
        length += piece.len();
        i += step;
    }
    *out.get_mut(length)? = 0;
    Some(&out[..=length])
}
