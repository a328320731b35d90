/* The plug-ins of test/preload, which lie in preload/ beside the test programs. */
#ifndef TEST_WORKER_ENVIRONMENT_PRELOADS_H
#define TEST_WORKER_ENVIRONMENT_PRELOADS_H

#include "worker/environment/environment_load.h"

#include <check.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static inline const char *preload_path(const char *name)
{
    static char path[PATH_MAX + 64];
    const ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
    ck_assert_int_gt(length, 0);
    path[length] = '\0';
    snprintf(strrchr(path, '/'), 64, "/preload/%s.so", name);
    return path;
}

static inline const struct environment_plugin *preload(const char *name)
{
    const struct environment_plugin *plugin = NULL;
    struct error error = {0};
    ck_assert_msg(environment_load(&plugin, preload_path(name), &error) == STATUS_OK, "%s", error.text);
    return plugin;
}

#endif
