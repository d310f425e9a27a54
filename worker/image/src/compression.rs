//! How layers, and archives of images as a whole, are compressed: recognised by their first bytes, and
//! unpacked as they are read.

use std::io::{self, BufRead, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use worker_system::text::shown;

/// The largest window of a zstd frame, and so the memory that reading one takes: as much as the `zstd`
/// program takes without being asked for more.
const WINDOW_BYTES: u64 = 128 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// The compression of a file with this beginning; four bytes are enough.
    pub fn of(start: &[u8]) -> Compression {
        match start {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            // A frame, or a skippable one, with which files may begin as well (RFC 8878 §3.1).
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
            _ => Compression::None,
        }
    }

    /// Reads the contents of `file`. Reading fails where it is damaged, or asks for too much memory.
    pub fn reader<'a>(self, file: impl BufRead + 'a) -> Box<dyn Read + 'a> {
        match self {
            Compression::None => Box::new(file),
            Compression::Gzip => Box::new(MultiGzDecoder::new(file)),
            Compression::Zstd => Box::new(Frames::new(file)),
        }
    }
}

/// The contents of zstd frames, one after the other (RFC 8878).
struct Frames<R> {
    file: R,
    /// The decoder's window and one block of the frame that is read.
    frame: FrameDecoder,
    /// Whether that frame was checked, or there is none.
    done: bool,
}

impl<R: BufRead> Frames<R> {
    fn new(file: R) -> Frames<R> {
        let mut frame = FrameDecoder::new();
        frame.set_max_window_size(WINDOW_BYTES);
        Frames { file, frame, done: true }
    }

    /// Begins the next frame, or skips one.
    fn begin(&mut self) -> io::Result<()> {
        match self.frame.reset(&mut self.file) {
            Ok(()) => self.done = false,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length, ..
            })) => {
                let skipped = io::copy(&mut (&mut self.file).take(length.into()), &mut io::sink())?;
                if skipped < length.into() {
                    return Err(damaged("it ends early"));
                }
            }
            Err(FrameDecoderError::WindowSizeTooBig { requested, .. }) => {
                return Err(damaged(format_args!(
                    "reading it would take {requested} bytes of memory, at most {WINDOW_BYTES} are allowed"
                )));
            }
            Err(error) => return Err(damaged(error)),
        }
        Ok(())
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let read = if self.done { 0 } else { self.frame.read(buffer)? };
            if read > 0 {
                return Ok(read);
            }
            if !self.frame.is_finished() {
                // A block has 128 KiB at most, unpacked as well.
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.frame.decode_blocks(&mut self.file, one).map_err(damaged)?;
                continue;
            }
            if !self.done {
                let expected = self.frame.get_checksum_from_data();
                if expected.is_some() && expected != self.frame.get_calculated_checksum() {
                    return Err(damaged("its sum is another"));
                }
                self.done = true;
            }
            if self.file.fill_buf()?.is_empty() {
                return Ok(0);
            }
            self.begin()?;
        }
    }
}

fn damaged(why: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a zstd frame: {}", shown(&why.to_string())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn read(file: &[u8]) -> Result<Vec<u8>, String> {
        let mut content = Vec::new();
        assert!(Compression::of(file) == Compression::Zstd);
        Compression::Zstd.reader(file).read_to_end(&mut content).map_err(|error| error.to_string())?;
        Ok(content)
    }

    /// A frame of blocks, each of which says `size` times `x` (RFC 8878 §3.1.1).
    fn frame(window: u8, sizes: &[u32]) -> Vec<u8> {
        let mut made = vec![0x28, 0xb5, 0x2f, 0xfd, 0, window];
        for (number, size) in sizes.iter().enumerate() {
            let last = u32::from(number + 1 == sizes.len());
            made.extend(&(size << 3 | 1 << 1 | last).to_le_bytes()[..3]);
            made.push(b'x');
        }
        made
    }

    /// A window of 2^N bytes, as a frame's header asks for it.
    const fn window(bits: u8) -> u8 {
        (bits - 10) << 3
    }

    #[test]
    fn frames_are_read_one_after_the_other_and_those_to_be_skipped_are_skipped() {
        let content: Vec<u8> = (0..300_000_u32).flat_map(|number| (number / 7).to_le_bytes()).collect();
        let packed = compress_to_vec(&content[..], CompressionLevel::Fastest);
        assert!(packed.len() < content.len());
        assert_eq!(read(&packed).unwrap(), content);
        let skipped = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"any"].concat();
        let empty = frame(window(20), &[0]);
        let last = frame(window(20), &[0, 2, 0, 1]);
        let all = [&skipped[..], &packed, &empty, &skipped, &last].concat();
        assert_eq!(read(&all).unwrap(), [&content[..], b"xxx"].concat());
        assert_eq!(read(&skipped[..10]).unwrap_err(), "a zstd frame: it ends early");
        assert!([&b"plain"[..], b"", b"\x28\xb5"].iter().all(|it| Compression::of(it) == Compression::None));
    }

    #[test]
    fn a_frame_may_not_ask_for_more_memory_than_is_allowed() {
        assert_eq!(read(&frame(window(27), &[1])).unwrap(), b"x");
        for above in [window(27) + 1, window(41), 0xff] {
            let why = read(&frame(above, &[1])).unwrap_err();
            assert!(why.contains("zstd") && (above > window(30) || why.contains("134217728")), "{why}");
        }
        // The content is the window: 8 bytes say how much that is.
        let single = [&[0x28, 0xb5, 0x2f, 0xfd, 0xe0][..], &(1_u64 << 40).to_le_bytes(), &[9, 0, 0, b'x']];
        assert!(read(&single.concat()).unwrap_err().contains("1099511627776 bytes of memory"));
    }

    #[test]
    fn a_bomb_is_unpacked_only_as_far_as_it_is_read() {
        // 1 TiB.
        let bomb = frame(window(20), &[128 << 10; 8 << 20]);
        let mut reader = Compression::Zstd.reader(&bomb[..]).take(10 << 20);
        assert_eq!(io::copy(&mut reader, &mut io::sink()).unwrap(), 10 << 20);
    }

    #[test]
    fn a_frame_that_was_cut_or_changed_is_damaged() {
        let content: Vec<u8> = (0..50_000_u32).flat_map(|number| (number / 5).to_le_bytes()).collect();
        let whole = compress_to_vec(&content[..], CompressionLevel::Fastest);
        for length in (4..whole.len()).step_by(101).chain([whole.len() - 1]) {
            assert!(read(&whole[..length]).unwrap_err().starts_with("a zstd frame: "), "{length} bytes");
        }
        let mut changed = whole;
        *changed.last_mut().unwrap() ^= 1;
        assert_eq!(read(&changed).unwrap_err(), "a zstd frame: its sum is another");
    }

    proptest! {
        /// Nothing ends the worker: whatever a frame says is content or an error.
        #[test]
        fn any_bytes_in_a_frame_are_content_or_an_error(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        ) {
            let content: Vec<u8> = (0..9_000_u32).flat_map(|number| (number * number / 9).to_le_bytes()).collect();
            let mut packed = compress_to_vec(&content[..], CompressionLevel::Fastest);
            for (at, byte) in changes {
                let at = 4 + at.index(packed.len() - 4);
                packed[at] = byte;
            }
            let mut reader = Compression::Zstd.reader(&packed[..]).take(64 << 20);
            let _ = io::copy(&mut reader, &mut io::sink());
        }
    }
}
