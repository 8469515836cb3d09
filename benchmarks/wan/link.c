/* A long link between two network namespaces: link NEAR FAR DELAY_MS BITS_PER_S LOSS QUEUE_BYTES
 *
 * Makes a TUN device "wan" in each namespace and carries packets between the two. Each direction is a line of the
 * given rate with a drop-tail queue in front and a fixed one-way delay behind; a share LOSS of packets is dropped at
 * random, from a fixed seed. Writes "up" to standard output when both devices exist, and ends with SIGTERM, telling
 * on standard error what it carried and dropped. Needs root. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { SLOT = 2048, BURST = 64 }; /* the largest packet, by the devices' MTU of 1500; packets read at a turn */

struct packet { double due; int length; unsigned char bytes[SLOT]; };

/* Packets leave in the order in which they came: a ring is enough. */
struct line {
    int from, to;
    size_t slots, head, tail;
    struct packet *ring;
    double free_at; /* when the last packet taken will have left the sender */
    unsigned long carried, lost, overflowed;
};

static volatile sig_atomic_t ending;
static void on_signal(int number) { (void)number; ending = 1; }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void fail(const char *what) { perror(what); exit(1); }

static int device_in(const char *namespace) {
    char path[256];
    snprintf(path, sizeof path, "/var/run/netns/%s", namespace);
    int place = open(path, O_RDONLY | O_CLOEXEC);
    if (place < 0 || setns(place, CLONE_NEWNET)) fail(path);
    close(place);
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    if (device < 0) fail("/dev/net/tun");
    struct ifreq wish;
    memset(&wish, 0, sizeof wish);
    wish.ifr_flags = IFF_TUN | IFF_NO_PI;
    strcpy(wish.ifr_name, "wan");
    if (ioctl(device, TUNSETIFF, &wish)) fail("TUNSETIFF");
    return device;
}

/* Take what the sender's side has to send. */
static void take(struct line *line, double rate, double delay, double loss, double queue) {
    static unsigned char spill[SLOT];
    for (int i = 0; i < BURST; i++) {
        int full = line->head - line->tail == line->slots;
        struct packet *packet = &line->ring[line->head % line->slots];
        int length = read(line->from, full ? spill : packet->bytes, SLOT);
        if (length <= 0) return;
        double t = now(), start = line->free_at > t ? line->free_at : t;
        if (loss > 0 && drand48() < loss) { line->lost++; continue; }
        if (full || (start - t) * rate > queue) { line->overflowed++; continue; }
        line->free_at = start + length / rate;
        packet->due = line->free_at + delay;
        packet->length = length;
        line->head++;
    }
}

/* Hand over what is due; returns when the next packet will be, or a time far away. */
static double deliver(struct line *line) {
    while (line->tail != line->head) {
        struct packet *packet = &line->ring[line->tail % line->slots];
        if (packet->due > now()) return packet->due;
        if (write(line->to, packet->bytes, packet->length) < 0) {
            if (errno == EAGAIN) return now() + 0.0002;
            line->overflowed++;
        } else line->carried++;
        line->tail++;
    }
    return 1e18;
}

int main(int count, char **words) {
    if (count != 7) { fprintf(stderr, "link NEAR FAR DELAY_MS BITS_PER_S LOSS QUEUE_BYTES\n"); return 2; }
    double delay = atof(words[3]) / 1e3, rate = atof(words[4]) / 8, loss = atof(words[5]), queue = atof(words[6]);
    struct line lines[2];
    memset(lines, 0, sizeof lines);
    int near = device_in(words[1]), far = device_in(words[2]);
    for (int i = 0; i < 2; i++) {
        struct line *line = &lines[i];
        line->from = i ? far : near;
        line->to = i ? near : far;
        line->slots = (size_t)((rate * delay + queue) / 500) + 4096; /* small packets too; memory is used when it is touched */
        line->ring = malloc(line->slots * sizeof *line->ring);
        if (!line->ring) fail("memory");
    }
    srand48(1);
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    printf("up\n");
    fflush(stdout);
    struct pollfd ready[2] = {{near, POLLIN, 0}, {far, POLLIN, 0}};
    while (!ending) {
        double next = 1e18;
        for (int i = 0; i < 2; i++) {
            take(&lines[i], rate, delay, loss, queue);
            double due = deliver(&lines[i]);
            if (due < next) next = due;
        }
        double left = next - now();
        if (left <= 0) continue;
        if (left > 0.1) left = 0.1; /* so that a signal between the test and the wait is noticed */
        struct timespec pause = {0, (long)(left * 1e9)};
        ppoll(ready, 2, &pause, NULL);
    }
    for (int i = 0; i < 2; i++)
        fprintf(stderr, "%s: carried %lu, lost %lu, overflowed %lu packets\n", i ? "to near" : "to far", lines[i].carried, lines[i].lost, lines[i].overflowed);
    return 0;
}
