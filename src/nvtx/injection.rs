//! How a program and a profiler find each other, as NVTX 3 has it: the profiler
//! names a library in NVTX_INJECTION64_PATH; that is loaded, and its
//! `InitializeInjectionNvtx2` is given a function that leads to tables of
//! places, into which it writes the functions that it wants called. What is
//! declared here follows NVIDIA's nvToolsExt.h and nvtxDetail/nvtxTypes.h,
//! version 3. NVIDIA's own crate needs libclang to be built.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::os::unix::{Library, RTLD_LAZY};

/// The variable that names the profiler's library.
const PATH: &str = "NVTX_INJECTION64_PATH";

/// NVTX_VERSION.
const VERSION: u32 = 3;

/// Numbers of the tables (NvtxCallbackModule): 1 to 6.
const MODULES: usize = 6;
/// Functions of each (the `_SIZE` of the enumerations of their numbers).
const SIZES: [usize; MODULES] = [16, 9, 15, 7, 16, 7];
/// Functions of the largest.
const MOST: usize = 16;
/// NVTX_CB_MODULE_CORE2: the functions of domains.
const CORE2: usize = 5;

/// Functions of that table (NvtxCallbackIdCore2).
mod core2 {
    pub const DOMAIN_MARK: usize = 1;
    pub const DOMAIN_RANGE_PUSH: usize = 4;
    pub const DOMAIN_RANGE_POP: usize = 5;
    pub const DOMAIN_CREATE: usize = 12;
}

type Domain = *mut c_void;
type DomainCreate = unsafe extern "C" fn(*const c_char) -> Domain;
type DomainMark = unsafe extern "C" fn(Domain, *const Attributes);
type DomainRangePush = unsafe extern "C" fn(Domain, *const Attributes) -> c_int;
type DomainRangePop = unsafe extern "C" fn(Domain) -> c_int;
type GetExportTable = extern "C" fn(u32) -> *const c_void;
type Initialize = unsafe extern "C" fn(GetExportTable) -> c_int;

/// nvtxEventAttributes_t, version 2 of it.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    /// 1: ARGB.
    color_type: i32,
    color: u32,
    /// 1: an unsigned number of 64 bits.
    payload_type: i32,
    reserved: i32,
    payload: u64,
    /// 1: text that ends with a zero.
    message_type: i32,
    message: *const c_char,
}

const _: () = assert!(size_of::<Attributes>() == 48);

impl Attributes {
    /// `text` ends with a zero, and must live as long as this is used.
    fn new(text: &[u8], color: u32, payload: u64) -> Self {
        Self {
            version: VERSION as u16,
            size: size_of::<Self>() as u16,
            category: 0,
            color_type: 1,
            color,
            payload_type: 1,
            reserved: 0,
            payload,
            message_type: 1,
            message: text.as_ptr().cast(),
        }
    }
}

/// NvtxExportTableCallbacks.
#[repr(C)]
struct Callbacks {
    struct_size: usize,
    get_module: extern "C" fn(c_uint, *mut *const Place, *mut c_uint) -> c_int,
}

/// NvtxExportTableVersionInfo.
#[repr(C)]
struct VersionInfo {
    struct_size: usize,
    version: u32,
    reserved: u32,
    set_injection_version: extern "C" fn(u32),
}

/// Where the address of a function is written.
type Function = AtomicPtr<c_void>;
/// The place of a function; none for number 0, which is no function.
#[repr(transparent)]
struct Place(*const Function);

// SAFETY: it points to a static atomic.
unsafe impl Sync for Place {}

static FUNCTIONS: [[Function; MOST]; MODULES] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; MOST] }; MODULES];

/// A module's table: a place for each number, and a null at its end.
const fn places(module: usize) -> [Place; MOST + 1] {
    let mut places = [const { Place(ptr::null()) }; MOST + 1];
    let mut number = 1;
    while number < SIZES[module] {
        places[number] = Place(&raw const FUNCTIONS[module][number]);
        number += 1;
    }
    places
}

static PLACES: [[Place; MOST + 1]; MODULES] = [
    places(0),
    places(1),
    places(2),
    places(3),
    places(4),
    places(5),
];

static CALLBACKS: Callbacks = Callbacks {
    struct_size: size_of::<Callbacks>(),
    get_module,
};

static VERSION_INFO: VersionInfo = VersionInfo {
    struct_size: size_of::<VersionInfo>(),
    version: VERSION,
    reserved: 0,
    set_injection_version,
};

extern "C" fn get_export_table(number: u32) -> *const c_void {
    match number {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION_INFO).cast(),
        _ => ptr::null(),
    }
}

extern "C" fn get_module(module: c_uint, table: *mut *const Place, size: *mut c_uint) -> c_int {
    let Some(index) = (module as usize).checked_sub(1).filter(|i| *i < MODULES) else {
        return 0;
    };
    // SAFETY: each is null or the profiler's, to be written.
    unsafe {
        if !table.is_null() {
            table.write(PLACES[index].as_ptr());
        }
        if !size.is_null() {
            size.write(SIZES[index] as c_uint);
        }
    }
    1
}

/// Which version the profiler has makes no difference here.
extern "C" fn set_injection_version(_version: u32) {}

/// A profiler's functions for domains, and our domain.
#[derive(Debug)]
pub struct Marks {
    domain: Domain,
    mark: DomainMark,
    push: DomainRangePush,
    pop: DomainRangePop,
}

// SAFETY: NVTX functions may be called from any thread, and a domain's handle
// is only ever given back to them (nvToolsExt.h).
unsafe impl Send for Marks {}
// SAFETY: as above.
unsafe impl Sync for Marks {}

static MARKS: OnceLock<Marks> = OnceLock::new();

/// What [`load`] has found.
pub fn marks() -> Option<&'static Marks> {
    MARKS.get()
}

/// Loads the profiler's library, which then stays.
///
/// # Errors
/// Why there are no marks, with what to do.
pub fn load() -> Result<(), String> {
    let Some(path) = std::env::var_os(PATH).filter(|path| !path.is_empty()) else {
        return Err(format!(
            "no profiler has started this process ({PATH} is not set): run it with `nsys profile`"
        ));
    };
    let name = path.to_string_lossy().into_owned();
    // SAFETY: a library that a profiler has named for exactly this; NVIDIA's own
    // loader opens it the same way.
    let library = unsafe { Library::open(Some(&path), RTLD_LAZY) }
        .map_err(|why| format!("{PATH}={name} cannot be loaded: {why}"))?;
    // SAFETY: the function of this name has this prototype.
    let initialize = unsafe { library.get::<Initialize>(b"InitializeInjectionNvtx2\0") }
        .map(|function| *function)
        .map_err(|_| format!("{PATH}={name} is no profiler for NVTX 3"))?;
    // What it may now keep pointers to must stay.
    std::mem::forget(library);
    // SAFETY: called as NVIDIA's own loader does; the tables are static.
    if unsafe { initialize(get_export_table) } == 0 {
        return Err(format!("the profiler {name} does not want any"));
    }
    let function = |number: usize| {
        let address = FUNCTIONS[CORE2 - 1][number].load(Ordering::Acquire);
        (!address.is_null()).then_some(address)
    };
    let found = || {
        let create = function(core2::DOMAIN_CREATE)?;
        let mark = function(core2::DOMAIN_MARK)?;
        let push = function(core2::DOMAIN_RANGE_PUSH)?;
        let pop = function(core2::DOMAIN_RANGE_POP)?;
        // SAFETY: the profiler put functions with these prototypes into these
        // places. It takes a terminated name.
        unsafe {
            let create: DomainCreate = std::mem::transmute(create);
            Some(Marks {
                domain: create(c"gpupool".as_ptr()),
                mark: std::mem::transmute::<*mut c_void, DomainMark>(mark),
                push: std::mem::transmute::<*mut c_void, DomainRangePush>(push),
                pop: std::mem::transmute::<*mut c_void, DomainRangePop>(pop),
            })
        }
    };
    match found() {
        Some(marks) => {
            let _ = MARKS.set(marks);
            Ok(())
        }
        None => Err(format!("the profiler {name} takes none in domains")),
    }
}

impl Marks {
    /// Marks this moment. `text` ends with a zero.
    pub fn mark(&self, text: &[u8], color: u32, payload: u64) {
        let attributes = Attributes::new(text, color, payload);
        // SAFETY: the profiler's function; the text outlives the call.
        unsafe { (self.mark)(self.domain, &raw const attributes) };
    }

    /// Begins a range of this thread. `text` as in [`Marks::mark`].
    pub fn push(&self, text: &[u8], color: u32, payload: u64) {
        let attributes = Attributes::new(text, color, payload);
        // SAFETY: as above.
        unsafe { (self.push)(self.domain, &raw const attributes) };
    }

    /// Ends the range of this thread that began last.
    pub fn pop(&self) {
        // SAFETY: as above.
        unsafe { (self.pop)(self.domain) };
    }
}
