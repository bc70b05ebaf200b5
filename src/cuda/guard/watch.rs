//! What the guard knows of one context's memory, and looking at it.

use super::finding::{Finding, Kind, Neighbour};
use super::lane::{BUFFER, Lane};
use super::scan::{Scan, Wrong};
use super::unowned::{Last, Part, Unowned};
use super::{UNOWNED, ZONE, ZONE_MIN};
use crate::cuda::context::Context;
use crate::logging::callsite::CallSite;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// At each free so many pieces of other memory are looked at …
const PIECES: usize = 4;
/// … of so many bytes at most.
const PIECE: u64 = BUFFER / PIECES as u64;

/// Used under the guard's lock.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub lane: Lane,
    pub live: BTreeMap<u64, Live>,
    pub unowned: Unowned,
    /// Where looking around goes on.
    cursor: u64,
}

/// A block of the program's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    /// Bytes that the program asked for.
    pub requested: u64,
    /// First byte behind its red zone.
    pub end: u64,
    /// The zone holds its pattern, as far as the program kept out of it.
    pub armed: bool,
    /// Another process may see it: it is not filled at its free.
    pub exported: bool,
    pub allocated: CallSite,
}

/// A piece of memory whose pattern is known.
enum Piece {
    Unowned(Part),
    Zone(u64, Live),
}

impl Piece {
    fn range(&self) -> (u64, u64) {
        match self {
            Piece::Unowned(part) => (part.start, part.end),
            Piece::Zone(address, live) => (address + live.requested, live.end),
        }
    }

    fn pattern(&self) -> u8 {
        match self {
            Piece::Unowned(_) => UNOWNED,
            Piece::Zone(..) => ZONE,
        }
    }
}

impl Watch {
    /// Looks at unowned memory.
    pub fn check(
        &mut self,
        context: &Context,
        parts: &[Part],
        noticed: &'static str,
        out: &mut Vec<Finding>,
    ) {
        for part in parts {
            if let Some(wrong) = self.lane.compare(context, part.start, part.end, UNOWNED) {
                // Once is enough.
                self.unowned.take(part.start, part.end);
                self.wrong_unowned(wrong, &part.last, noticed, out);
            }
        }
    }

    /// Looks at the red zone of a block; after a finding not again.
    pub fn check_zone(
        &mut self,
        context: &Context,
        address: u64,
        live: &mut Live,
        noticed: &'static str,
        out: &mut Vec<Finding>,
    ) {
        if !live.armed {
            return;
        }
        let start = address + live.requested;
        if let Some(wrong) = self.lane.compare(context, start, live.end, ZONE) {
            live.armed = false;
            self.wrong_zone(wrong, address, live, noticed, out);
        }
    }

    fn wrong_unowned(
        &self,
        wrong: Wrong,
        last: &Last,
        noticed: &'static str,
        out: &mut Vec<Finding>,
    ) {
        if last
            .as_ref()
            .is_some_and(|former| former.reported.swap(true, Ordering::Relaxed))
        {
            return;
        }
        let next = self.block_from(wrong.last + 1);
        out.push(Finding {
            wrong,
            kind: Kind::Unowned {
                last: last.clone(),
                next,
            },
            noticed,
        });
    }

    fn wrong_zone(
        &self,
        wrong: Wrong,
        address: u64,
        live: &Live,
        noticed: &'static str,
        out: &mut Vec<Finding>,
    ) {
        let next = self
            .block_from(live.end)
            .filter(|next| next.address == live.end);
        out.push(Finding {
            wrong,
            kind: Kind::Overrun {
                address,
                requested: live.requested,
                end: live.end,
                allocated: live.allocated,
                next,
            },
            noticed,
        });
    }

    /// The first block that begins at or behind `address`; also a freed one
    /// whose memory nobody has yet.
    fn block_from(&self, address: u64) -> Option<Neighbour> {
        let live = self.live.range(address..).next();
        let live = live.map(|(address, live)| Neighbour {
            address: *address,
            requested: live.requested,
            freed: false,
        });
        let freed = self.unowned.first_former(address).map(|former| Neighbour {
            address: former.address,
            requested: former.requested,
            freed: true,
        });
        live.into_iter()
            .chain(freed)
            .min_by_key(|next| next.address)
    }

    /// Looks at what is in front of the block at `address`: the red zone of
    /// the block before, or as much unowned memory.
    pub fn check_front(&mut self, context: &Context, address: u64, out: &mut Vec<Finding>) {
        let noticed = "noticed at the free of the block behind";
        let before = self.live.range(..address).next_back();
        if let Some((front, live)) = before.filter(|(_, live)| live.end == address) {
            let (front, mut live) = (*front, *live);
            self.check_zone(context, front, &mut live, noticed, out);
            self.live.insert(front, live);
        } else if let Some(part) = self.unowned.around(address - 1) {
            let start = part.start.max(address - ZONE_MIN);
            let end = address;
            self.check(context, &[Part { start, end, ..part }], noticed, out);
        }
    }

    /// Looks at a few pieces of memory, going on where the last call stopped:
    /// so that most of what is wrong is found soon, and also what is never
    /// handed out again or never freed.
    pub fn look_around(&mut self, context: &Context, out: &mut Vec<Finding>) {
        let mut pieces: Vec<Piece> = Vec::with_capacity(PIECES);
        let begun_at = self.cursor;
        let mut wrapped = false;
        while pieces.len() < PIECES {
            match self.next_piece() {
                Some(piece) if wrapped && piece.range().0 >= begun_at => break,
                Some(piece) => {
                    self.cursor = piece.range().1;
                    pieces.push(piece);
                }
                None if wrapped => break,
                None => {
                    wrapped = true;
                    self.cursor = 0;
                }
            }
        }
        let ranges: Vec<(u64, u64)> = pieces.iter().map(Piece::range).collect();
        let mut wrongs = Vec::new();
        let Some(mut bytes) = self.lane.read(context, &ranges) else {
            return;
        };
        for (piece, (start, end)) in pieces.iter().zip(&ranges) {
            let (own, rest) = bytes.split_at((end - start) as usize);
            bytes = rest;
            let mut scan = Scan::new(piece.pattern());
            scan.feed(*start, own);
            wrongs.push(scan.result());
        }
        let noticed = "noticed at a later free";
        for (piece, wrong) in pieces.into_iter().zip(wrongs) {
            let Some(wrong) = wrong else { continue };
            match piece {
                Piece::Unowned(part) => {
                    // The whole of what the piece is from.
                    let whole = self.unowned.around(part.start).unwrap_or(part);
                    self.check(context, &[whole], noticed, out);
                }
                Piece::Zone(address, live) => {
                    if let Some(live) = self.live.get_mut(&address) {
                        live.armed = false;
                    }
                    self.wrong_zone(wrong, address, &live, noticed, out);
                }
            }
        }
    }

    /// The piece at the cursor, or the first behind it.
    fn next_piece(&self) -> Option<Piece> {
        let part = self.unowned.next(self.cursor, PIECE);
        let armed = |(address, live): (&u64, &Live)| {
            (live.armed && live.end - (address + live.requested) <= PIECE)
                .then_some((*address, *live))
        };
        let zone = self.live.range(self.cursor..).find_map(armed);
        match (part, zone) {
            (Some(part), Some((address, _))) if part.start < address => Some(Piece::Unowned(part)),
            (_, Some((address, live))) => Some(Piece::Zone(address, live)),
            (part, None) => part.map(Piece::Unowned),
        }
    }
}
