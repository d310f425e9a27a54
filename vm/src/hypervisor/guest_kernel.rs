//! The guest's kernel: its command line, and its image in the format that a hypervisor boots.

use std::io::Read;

use ruzstd::decoding::StreamingDecoder;
use vm_protocol::Mode;

use crate::base::settings::Settings;

/// Debian and kernel/build compress with `zstd -22`, whose window is 128 MiB.
const MOST_WINDOW_BYTES: u64 = 128 << 20;

/// The kernel's command line; `own` is what this hypervisor needs.
pub(super) fn command_line(settings: &Settings, own: &str) -> String {
    let layout = &settings.layout;
    // With memory above 4 GiB Linux would reserve 64 MiB of bounce buffers for devices that cannot reach it;
    // virtio reaches all memory. Where the timer ticks too rarely at boot, as under emulation on a busy host,
    // Linux would panic; under KVM it skips that check by itself.
    let words = "console=ttyS0 quiet panic=-1 oops=panic no_timer_check \
                 memhp_default_state=online_movable swiotlb=noforce";
    let mut words = vec![words.to_string(), own.to_string()];
    if layout.mode.is_kernels() {
        words.push(format!(
            "hotmem.partitions={} hotmem.shared_node={}",
            layout.partitions(),
            layout.shared_node()
        ));
    }
    if layout.mode == Mode::Ranges {
        words.push(format!("hotmem.range={}", layout.partition_bytes[0]));
        if layout.shared_bytes > 0 {
            words.push(format!("hotmem.shared_range={}", layout.shared_bytes));
        }
    }
    words.extend([settings.image.append.clone(), settings.append.clone()]);
    words.retain(|word| !word.is_empty());
    words.join(" ")
}

/// The ELF file inside a bzImage that is compressed with zstd; `None`: the image is another format. The
/// offsets are those of Linux's boot protocol (Documentation/arch/x86/boot.rst).
pub(super) fn elf_inside(image: &[u8]) -> Option<Vec<u8>> {
    let number = |offset: usize| {
        let bytes = image.get(offset..offset + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes) as usize)
    };
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let setup_sectors = match image[0x1f1] {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (setup_sectors + 1) * 512 + number(0x248)?;
    let payload = image.get(start..start.checked_add(number(0x24c)?)?)?;
    let mut decoder = StreamingDecoder::new_with_max_window_size(payload, MOST_WINDOW_BYTES).ok()?;
    let mut elf = Vec::new();
    decoder.read_to_end(&mut elf).ok()?;
    elf.starts_with(b"\x7fELF").then_some(elf)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bzImage of two setup sectors with this payload.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 3 * 512];
        image[0x1f1] = 2;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image.extend([0; 16]);
        image.extend(payload);
        image.extend(b"the end");
        image
    }

    #[test]
    fn the_elf_file_of_a_bzimage_is_found() {
        let elf = [b"\x7fELF".to_vec(), vec![7; 100_000]].concat();
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let mut payload = ruzstd::encoding::compress_to_vec(&elf[..], level);
        // Linux appends the size.
        payload.extend((elf.len() as u32).to_le_bytes());
        assert_eq!(elf_inside(&image(&payload)), Some(elf.clone()));
        let other = ruzstd::encoding::compress_to_vec(&b"something else"[..], level);
        let whole = image(&payload);
        let cut = whole[..whole.len() - 20].to_vec();
        for image in [elf, image(&other), image(b"gzip"), cut, Vec::new()] {
            assert_eq!(elf_inside(&image), None);
        }
    }
}
