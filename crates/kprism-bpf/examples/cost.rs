use kprism_bpf::{asm::Asm,btf::Btf,insn::*,link::Link,prog::*};
fn now()->u64{ let t=std::time::Instant::now(); let _=t; let mut ts=libc::timespec{tv_sec:0,tv_nsec:0}; unsafe{libc::clock_gettime(libc::CLOCK_MONOTONIC,&raw mut ts)}; ts.tv_sec as u64*1_000_000_000+ts.tv_nsec as u64}
fn run()->u64{ let a=now(); for _ in 0..10000{ unsafe{libc::syscall(libc::SYS_getppid)}; } (now()-a)/10000 }
fn prog(times:usize)->Asm{ let mut a=Asm::new(); for _ in 0..times{a.call(Helper::KtimeGetNs);} a.end(); a}
fn cpu()->Asm{ let mut a=Asm::new(); a.call(Helper::SmpProcessorId); a.end(); a}
fn main(){
 let btf=Btf::vmlinux().unwrap();
 for t in btf.types(){ if t.name.contains("getppid")||t.name=="vfs_read"{println!("{:?} {} {}",t.kind,t.name,t.id)} }
 println!("{:?}",btf.function("vfs_read"));
 let f=std::env::args().nth(1).unwrap();let id=btf.function(&f).unwrap().id;
 let t=BtfTarget{id,module:None};
 println!("base {}",run()); println!("base {}",run());
 let try_=|name:&str,ks:Vec<(ProgKind,Asm)>|{ let mut l=vec![]; let mut ps=vec![]; for (k,a) in ks { let p=Program::load(name,k,&a.finish().unwrap(),&[]).unwrap(); l.push(Link::tracing(&p,0).unwrap()); ps.push(p);} run(); println!("{name} {}",run()); };
 try_("fentry",vec![(ProgKind::Fentry(t),prog(0))]);
 try_("fentry+time",vec![(ProgKind::Fentry(t),prog(1))]);
 try_("fentry+cpu",vec![(ProgKind::Fentry(t),cpu())]);
 try_("fexit",vec![(ProgKind::Fexit(t),prog(0))]);
 try_("both",vec![(ProgKind::Fentry(t),prog(0)),(ProgKind::Fexit(t),prog(0))]);
 try_("both+time",vec![(ProgKind::Fentry(t),prog(1)),(ProgKind::Fexit(t),prog(1))]);
}
