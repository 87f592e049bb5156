/* main() of the fuzz targets in plain builds: feeds every file of the given files and folders to
 * the target once. Fails when there was nothing to feed. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int feed_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return -1;
    }
    size_t len = 0, room = 1 << 16;
    uint8_t *data = malloc(room);
    while (data != NULL) {
        size_t n = fread(data + len, 1, room - len, file);
        len += n;
        if (n == 0) {
            break;
        }
        if (len == room) {
            room *= 2;
            data = realloc(data, room);
        }
    }
    int failed = ferror(file);
    fclose(file);
    if (data == NULL || failed != 0) {
        fprintf(stderr, "%s: cannot read\n", path);
        free(data);
        return -1;
    }
    /* A block of exactly the file's size: a read past its end is then a read past a malloc block.
     */
    uint8_t *exact = malloc(len > 0 ? len : 1);
    if (exact == NULL) {
        free(data);
        return -1;
    }
    memcpy(exact, data, len);
    free(data);
    fprintf(stderr, "%s\n", path);
    LLVMFuzzerTestOneInput(exact, len);
    free(exact);
    return 1;
}

/* Files fed, or -1. */
static int feed(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        perror(path);
        return -1;
    }
    if (!S_ISDIR(info.st_mode)) {
        return feed_file(path);
    }
    DIR *folder = opendir(path);
    if (folder == NULL) {
        perror(path);
        return -1;
    }
    int total = 0;
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        char name[4096];
        if (entry->d_name[0] == '.') {
            continue;
        }
        snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
        int fed = feed_file(name);
        if (fed < 0) {
            closedir(folder);
            return -1;
        }
        total += fed;
    }
    closedir(folder);
    return total;
}

int main(int argc, char **argv)
{
    int total = 0;
    for (int i = 1; i < argc; i++) {
        int fed = feed(argv[i]);
        if (fed < 0) {
            return 1;
        }
        total += fed;
    }
    printf("%d inputs replayed\n", total);
    return total > 0 ? 0 : 1;
}
