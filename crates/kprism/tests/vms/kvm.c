// SPDX-License-Identifier: MIT OR Apache-2.0
/* A virtual machine of one page, in 16-bit mode: three times it adds a thousand times and writes to a port; then it halts. */
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

static const uint8_t code[] = {
	0xba, 0xf8, 0x03, /* 1000: mov $0x3f8, %dx */
	0xbb, 0x03, 0x00, /* 1003: mov $3, %bx */
	0xb9, 0xe8, 0x03, /* 1006: mov $1000, %cx */
	0x00, 0xd8,       /* 1009: add %bl, %al */
	0xe2, 0xfc,       /* 100b: loop 1009 */
	0xee,             /* 100d: out %al, (%dx) */
	0x4b,             /* 100e: dec %bx */
	0x75, 0xf5,       /* 100f: jnz 1006 */
	0xf4,             /* 1011: hlt */
};

static int failed(const char *what)
{
	perror(what);
	return 1;
}

int main(void)
{
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (kvm < 0)
		return failed("/dev/kvm");
	int vm = ioctl(kvm, KVM_CREATE_VM, 0UL);
	uint8_t *memory = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (vm < 0 || memory == MAP_FAILED)
		return failed("a virtual machine");
	memcpy(memory, code, sizeof code);
	struct kvm_userspace_memory_region region = {
		.guest_phys_addr = 0x1000, .memory_size = 4096, .userspace_addr = (uintptr_t)memory
	};
	int vcpu = ioctl(vm, KVM_CREATE_VCPU, 0UL);
	if (vcpu < 0 || ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region) < 0)
		return failed("its CPU and memory");
	size_t size = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	struct kvm_run *run = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
	struct kvm_sregs segments;
	struct kvm_regs registers = { .rip = 0x1000, .rflags = 2 };
	if (run == MAP_FAILED || ioctl(vcpu, KVM_GET_SREGS, &segments) < 0)
		return failed("its registers");
	segments.cs.base = 0;
	segments.cs.selector = 0;
	if (ioctl(vcpu, KVM_SET_SREGS, &segments) < 0 || ioctl(vcpu, KVM_SET_REGS, &registers) < 0)
		return failed("its registers");
	int outs = 0;
	do {
		if (ioctl(vcpu, KVM_RUN, 0) < 0)
			return failed("KVM_RUN");
		outs += run->exit_reason == KVM_EXIT_IO;
	} while (run->exit_reason == KVM_EXIT_IO);
	printf("halted after %d writes, exit %u\n", outs, run->exit_reason);
	return run->exit_reason != KVM_EXIT_HLT;
}
