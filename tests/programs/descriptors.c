// build: driver
/* The standard descriptors are closed, before the driver is initialised or before the program starts:
 * the numbers that the program gets for its files are as without a pool. What it takes for its stderr
 * is never a file of the library's.
 *   descriptors [exec]    exec: closed before the program starts */
#define KIT_DRIVER_ONLY
#include "kit.h"
#include <errno.h>
#include <fcntl.h>

enum { KEPT = 50, ROUNDS = 200, LIVE = 20 };

static void traffic(void)
{
    CUdevice device;
    CUcontext context;
    CUdeviceptr p[LIVE];
    CHECK_CU(cuInit(0));
    CHECK_CU(cuDeviceGet(&device, 0));
    CHECK_CU(cuDevicePrimaryCtxRetain(&context, device));
    CHECK_CU(cuCtxSetCurrent(context));
    for (int i = 0; i < ROUNDS; i++) {
        for (int j = 0; j < LIVE; j++)
            CHECK_CU(cuMemAlloc(&p[j], MIB));
        for (int j = 0; j < LIVE; j++)
            CHECK_CU(cuMemFree(p[j]));
    }
}

int main(int argc, char **argv)
{
    int exec = argc > 1 && !strcmp(argv[1], "exec");
    if (argc == 1 || exec) {
        EXPECT_EQ(fcntl(1, F_DUPFD, KEPT), KEPT);
        close(0);
        close(1);
        close(2);
    }
    if (exec)
        return execl("/proc/self/exe", argv[0], "closed", (char *)NULL);
    traffic();
    for (int fd = 0; fd < 3; fd++)
        dprintf(KEPT, "%d is open: %d\n", fd, fcntl(fd, F_GETFD) != -1);
    for (int i = 0; i < 4; i++)
        dprintf(KEPT, "the next file is %d\n", open("/dev/null", O_RDWR));
    traffic();
    return 0;
}
