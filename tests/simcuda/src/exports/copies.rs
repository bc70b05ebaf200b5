//! Copies and memsets.

use crate::abi::{Memcpy2D, Memcpy3D};
use crate::alloc;
use crate::copy::{self, Order, Want};

const DEVICE: Want = Want::Device;
const HOST: Want = Want::Host;
const ANY: Want = Want::Any;

mod ordered {
    use super::*;

    super::super::stream_entries! { ROWS;
        "cuMemcpyAsync" 4000 cuMemcpyAsync, 7000 cuMemcpyAsync_ptsz
            (s; dst: u64, src: u64, n: usize, s: u64) => copy::copy(dst, src, n, (ANY, ANY), Order::Async(s));
        "cuMemcpyPeerAsync" 4000 cuMemcpyPeerAsync, 7000 cuMemcpyPeerAsync_ptsz
            (s; dst: u64, dc: u64, src: u64, sc: u64, n: usize, s: u64) => copy::copy_peer(dst, dc, src, sc, n, Order::Async(s));
        "cuMemcpyHtoDAsync" 3020 cuMemcpyHtoDAsync_v2, 7000 cuMemcpyHtoDAsync_v2_ptsz
            (s; dst: u64, src: u64, n: usize, s: u64) => copy::copy(dst, src, n, (DEVICE, HOST), Order::Async(s));
        "cuMemcpyDtoHAsync" 3020 cuMemcpyDtoHAsync_v2, 7000 cuMemcpyDtoHAsync_v2_ptsz
            (s; dst: u64, src: u64, n: usize, s: u64) => copy::copy(dst, src, n, (HOST, DEVICE), Order::Async(s));
        "cuMemcpyDtoDAsync" 3020 cuMemcpyDtoDAsync_v2, 7000 cuMemcpyDtoDAsync_v2_ptsz
            (s; dst: u64, src: u64, n: usize, s: u64) => copy::copy(dst, src, n, (DEVICE, DEVICE), Order::Async(s));
        "cuMemcpy2DAsync" 3020 cuMemcpy2DAsync_v2, 7000 cuMemcpy2DAsync_v2_ptsz
            (s; c: *const Memcpy2D, s: u64) => copy::copy_2d(c, Order::Async(s));
        "cuMemcpy3DAsync" 3020 cuMemcpy3DAsync_v2, 7000 cuMemcpy3DAsync_v2_ptsz
            (s; c: *const Memcpy3D, s: u64) => copy::copy_3d(c, Order::Async(s));
        "cuMemcpy3DPeerAsync" 4000 cuMemcpy3DPeerAsync, 7000 cuMemcpy3DPeerAsync_ptsz
            (s; c: *const Memcpy3D, s: u64) => copy::copy_3d(c, Order::Async(s));
        "cuMemsetD8Async" 3020 cuMemsetD8Async, 7000 cuMemsetD8Async_ptsz
            (s; at: u64, v: u8, n: usize, s: u64) => copy::set(at, 0, u32::from(v), 1, n, 1, Order::Async(s));
        "cuMemsetD16Async" 3020 cuMemsetD16Async, 7000 cuMemsetD16Async_ptsz
            (s; at: u64, v: u16, n: usize, s: u64) => copy::set(at, 0, u32::from(v), 2, n, 1, Order::Async(s));
        "cuMemsetD32Async" 3020 cuMemsetD32Async, 7000 cuMemsetD32Async_ptsz
            (s; at: u64, v: u32, n: usize, s: u64) => copy::set(at, 0, v, 4, n, 1, Order::Async(s));
        "cuMemsetD2D8Async" 3020 cuMemsetD2D8Async, 7000 cuMemsetD2D8Async_ptsz
            (s; at: u64, p: usize, v: u8, w: usize, h: usize, s: u64) => copy::set(at, p, u32::from(v), 1, w, h, Order::Async(s));
        "cuMemsetD2D16Async" 3020 cuMemsetD2D16Async, 7000 cuMemsetD2D16Async_ptsz
            (s; at: u64, p: usize, v: u16, w: usize, h: usize, s: u64) => copy::set(at, p, u32::from(v), 2, w, h, Order::Async(s));
        "cuMemsetD2D32Async" 3020 cuMemsetD2D32Async, 7000 cuMemsetD2D32Async_ptsz
            (s; at: u64, p: usize, v: u32, w: usize, h: usize, s: u64) => copy::set(at, p, v, 4, w, h, Order::Async(s));
    }
}
pub(crate) use ordered::ROWS as ASYNC_ROWS;

mod synchronous {
    use super::*;

    super::super::copy_entries! { ROWS;
        "cuMemcpy" 4000 cuMemcpy, 7000 cuMemcpy_ptds
            (o; dst: u64, src: u64, n: usize) => copy::copy(dst, src, n, (ANY, ANY), o);
        "cuMemcpyPeer" 4000 cuMemcpyPeer, 7000 cuMemcpyPeer_ptds
            (o; dst: u64, dc: u64, src: u64, sc: u64, n: usize) => copy::copy_peer(dst, dc, src, sc, n, o);
        "cuMemcpyHtoD" 3020 cuMemcpyHtoD_v2, 7000 cuMemcpyHtoD_v2_ptds
            (o; dst: u64, src: u64, n: usize) => copy::copy(dst, src, n, (DEVICE, HOST), o);
        "cuMemcpyDtoH" 3020 cuMemcpyDtoH_v2, 7000 cuMemcpyDtoH_v2_ptds
            (o; dst: u64, src: u64, n: usize) => copy::copy(dst, src, n, (HOST, DEVICE), o);
        "cuMemcpyDtoD" 3020 cuMemcpyDtoD_v2, 7000 cuMemcpyDtoD_v2_ptds
            (o; dst: u64, src: u64, n: usize) => copy::copy(dst, src, n, (DEVICE, DEVICE), o);
        "cuMemcpy2D" 3020 cuMemcpy2D_v2, 7000 cuMemcpy2D_v2_ptds (o; c: *const Memcpy2D) => copy::copy_2d(c, o);
        "cuMemcpy2DUnaligned" 3020 cuMemcpy2DUnaligned_v2, 7000 cuMemcpy2DUnaligned_v2_ptds
            (o; c: *const Memcpy2D) => copy::copy_2d(c, o);
        "cuMemcpy3D" 3020 cuMemcpy3D_v2, 7000 cuMemcpy3D_v2_ptds (o; c: *const Memcpy3D) => copy::copy_3d(c, o);
        "cuMemcpy3DPeer" 4000 cuMemcpy3DPeer, 7000 cuMemcpy3DPeer_ptds (o; c: *const Memcpy3D) => copy::copy_3d(c, o);
        "cuMemsetD8" 3020 cuMemsetD8_v2, 7000 cuMemsetD8_v2_ptds
            (o; at: u64, v: u8, n: usize) => copy::set(at, 0, u32::from(v), 1, n, 1, o);
        "cuMemsetD16" 3020 cuMemsetD16_v2, 7000 cuMemsetD16_v2_ptds
            (o; at: u64, v: u16, n: usize) => copy::set(at, 0, u32::from(v), 2, n, 1, o);
        "cuMemsetD32" 3020 cuMemsetD32_v2, 7000 cuMemsetD32_v2_ptds
            (o; at: u64, v: u32, n: usize) => copy::set(at, 0, v, 4, n, 1, o);
        "cuMemsetD2D8" 3020 cuMemsetD2D8_v2, 7000 cuMemsetD2D8_v2_ptds
            (o; at: u64, p: usize, v: u8, w: usize, h: usize) => copy::set(at, p, u32::from(v), 1, w, h, o);
        "cuMemsetD2D16" 3020 cuMemsetD2D16_v2, 7000 cuMemsetD2D16_v2_ptds
            (o; at: u64, p: usize, v: u16, w: usize, h: usize) => copy::set(at, p, u32::from(v), 2, w, h, o);
        "cuMemsetD2D32" 3020 cuMemsetD2D32_v2, 7000 cuMemsetD2D32_v2_ptds
            (o; at: u64, p: usize, v: u32, w: usize, h: usize) => copy::set(at, p, v, 4, w, h, o);
    }
}
pub(crate) use synchronous::ROWS as SYNC_ROWS;

/// The forms from before 64-bit device pointers.
mod old {
    use super::alloc;

    super::super::entries! { ROWS;
        ready "cuMemcpyHtoD" 2000 cuMemcpyHtoD(_dst: u32, _src: u64, _n: u32) => alloc::pointer_old();
        ready "cuMemcpyDtoH" 2000 cuMemcpyDtoH(_dst: u64, _src: u32, _n: u32) => alloc::pointer_old();
        ready "cuMemcpyDtoD" 2000 cuMemcpyDtoD(_dst: u32, _src: u32, _n: u32) => alloc::pointer_old();
        ready "cuMemsetD8" 2000 cuMemsetD8(_at: u32, _v: u8, _n: u32) => alloc::pointer_old();
        ready "cuMemsetD16" 2000 cuMemsetD16(_at: u32, _v: u16, _n: u32) => alloc::pointer_old();
        ready "cuMemsetD32" 2000 cuMemsetD32(_at: u32, _v: u32, _n: u32) => alloc::pointer_old();
    }
}
pub(crate) use old::ROWS as OLD_ROWS;
