// build: plugin
// options: -Wl,-z,relro,-z,now
/* The plugin of plugin.c, whose table of addresses the loader makes read-only. */
#include "plugin_library.c"
