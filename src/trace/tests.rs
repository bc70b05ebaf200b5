use super::*;

fn call(number: u64) -> Call {
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    Call {
        is_free: mixed & 1 != 0,
        memory: Memory::of_code((mixed >> 1) as u8 % 5),
        thread: 3,
        at_ns: number * 1000 + (mixed >> 60),
        took_ns: mixed >> 50,
        address: mixed >> 16,
        size: if mixed & 1 != 0 { 0 } else { mixed >> 30 },
        result: if mixed & 64 != 0 { 2 } else { 0 },
        pooled: mixed & 128 != 0,
        place: (mixed & 256 != 0).then_some(Place {
            device: (mixed >> 9) as u32 & 7,
            context: mixed >> 40,
        }),
        stream: (mixed & 4096 != 0).then_some(mixed),
        site: mixed >> (mixed & 63),
        stack: if mixed & 8192 != 0 { mixed as u32 } else { 0 },
    }
}

fn tall() -> Vec<Stack> {
    vec![
        Stack {
            number: 1,
            frames: vec![0x7F00_0000_1234, 0x5555_0000_0001, 0x7F00_0000_1238],
        },
        Stack {
            number: 700,
            frames: Vec::new(),
        },
    ]
}

/// A trace, the length of its header, its calls and objects.
fn sample() -> (Vec<u8>, usize, Vec<Call>, Vec<Object>) {
    let start = Header {
        version: VERSION,
        pid: 4242,
        started_unix_ns: 1 << 60,
        library: String::from("0.1.0"),
    };
    let mut bytes = header(&start);
    let first = bytes.len();
    assert_eq!(Reader::new(&bytes).unwrap().header(), &start);
    let places = vec![
        Object {
            start: 0x7F00_0000_0000,
            end: 0x7F00_0001_0000,
            base: 0x7EFF_FFFF_0000,
            path: String::from("/usr/lib/libcudart.so.13"),
        },
        Object {
            start: 4096,
            end: 8192,
            base: 0,
            path: String::new(),
        },
    ];
    bytes.extend(objects(&places));
    bytes.extend(stacks(&tall()));
    let calls: Vec<Call> = (0..500).map(call).collect();
    let mut chunk = Chunk::with_capacity(100);
    for piece in calls.chunks(170) {
        piece.iter().for_each(|call| chunk.push(call, 77));
        bytes.extend_from_slice(chunk.finished());
        chunk.clear();
    }
    assert!(chunk.finished().is_empty() && chunk.is_empty());
    bytes.extend(end(&End {
        calls: 500,
        lost: 1,
    }));
    (bytes, first, calls, places)
}

#[test]
fn what_was_written_is_read() {
    let (bytes, _, calls, places) = sample();
    let mut reader = Reader::new(&bytes).unwrap();
    let items: Vec<Item> = reader.by_ref().map(Result::unwrap).collect();
    let is_thread = |item: &Item| matches!(item, Item::Thread { .. });
    let (threads, items): (Vec<Item>, Vec<Item>) = items.into_iter().partition(is_thread);
    assert_eq!(threads, vec![Item::Thread { number: 3, tid: 77 }; 3]);
    assert!(!reader.is_truncated());
    let expected: Vec<Item> = places
        .into_iter()
        .map(Item::Object)
        .chain(tall().into_iter().map(Item::Stack))
        .chain(calls.into_iter().map(Item::Call))
        .chain([Item::End(End {
            calls: 500,
            lost: 1,
        })])
        .collect();
    assert_eq!(items, expected);
    assert!(
        bytes.len() < 500 * 45,
        "{} bytes for 500 calls",
        bytes.len()
    );
}

/// Wherever a file ends, everything before its last record is read, and
/// nothing is made up.
#[test]
fn a_file_that_is_cut_off_gives_what_is_whole() {
    let (bytes, start, calls, _) = sample();
    let mut most = 0;
    for length in start..bytes.len() {
        let mut reader = Reader::new(&bytes[..length]).unwrap();
        let read: Vec<Call> = reader
            .by_ref()
            .filter_map(|item| match item.unwrap() {
                Item::Call(call) => Some(call),
                _ => None,
            })
            .collect();
        assert_eq!(read[..], calls[..read.len()], "{length} bytes");
        assert!(read.len() >= most, "{length} bytes");
        most = read.len();
    }
    assert_eq!(most, calls.len());
    assert!(Reader::new(&bytes[..start - 1]).is_err());
}

#[test]
fn damage_is_named_with_its_place() {
    let (bytes, start, ..) = sample();
    let error = |bytes: &[u8]| match Reader::new(bytes) {
        Err(error) => error,
        Ok(mut reader) => reader.find_map(Result::err).unwrap(),
    };
    assert!(error(b"a,1,2,3,4").to_string().contains("GPUTRACE"));
    let mut newer = bytes.clone();
    newer[8] = 9;
    assert!(error(&newer).to_string().contains("version 9"));
    let mut no_kind = bytes.clone();
    no_kind[start] = 0;
    let told = error(&no_kind);
    assert_eq!(told.position, start as u64, "{told}");
    // A later library's chunk is skipped.
    let mut unknown = bytes[..start].to_vec();
    unknown.extend_from_slice(&[200, 3, 0, 0, 0, 1, 2, 3]);
    unknown.extend_from_slice(&bytes[start..]);
    assert_eq!(Trace::read(&unknown).unwrap(), Trace::read(&bytes).unwrap());
}

/// No file makes the reader panic or go on for ever.
#[test]
fn any_bytes_are_read_or_refused() {
    let (bytes, ..) = sample();
    let mut seed = 1u64;
    for _ in 0..20_000 {
        let mut damaged = bytes[..2000].to_vec();
        for _ in 0..3 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = 12 + (seed >> 33) as usize % (damaged.len() - 12);
            damaged[at] = (seed >> 20) as u8;
        }
        if let Ok(reader) = Reader::new(&damaged) {
            assert!(reader.count() <= damaged.len());
        }
    }
}

#[test]
fn the_order_of_effects_has_frees_before_what_they_make_possible() {
    let base = call(0);
    let free = Call {
        is_free: true,
        at_ns: 100,
        took_ns: 900,
        ..base
    };
    let alloc = Call {
        is_free: false,
        at_ns: 90,
        took_ns: 50,
        ..base
    };
    assert!(free.effective_ns() < alloc.effective_ns());
}
