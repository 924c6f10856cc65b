use kprism_bpf::{func::*,kernel::*};
fn now()->u64{ let mut ts=libc::timespec{tv_sec:0,tv_nsec:0}; unsafe{libc::clock_gettime(libc::CLOCK_MONOTONIC,&raw mut ts)}; ts.tv_sec as u64*1_000_000_000+ts.tv_nsec as u64}
fn run()->u64{ let a=now(); for _ in 0..std::env::var("N").map_or(10000,|n|n.parse().unwrap()){ unsafe{libc::syscall(libc::SYS_getppid)}; } (now()-a)/std::env::var("N").map_or(10000,|n|n.parse().unwrap()) }
fn main(){
 let mut kernel=Kernel::running().unwrap();
 let all=functions().unwrap();
 println!("{} functions, {} ambiguous",all.len(),all.iter().filter(|f|f.ambiguous).count());
 let name=std::env::args().nth(1).unwrap();
 let fs:Vec<_>=all.into_iter().filter(|f|f.name==name).collect();
 println!("{:?} {}",fs, kernel.knows(&fs[0]));
 println!("choose {:?}",choose(&mut kernel,&fs));
 println!("base {}",run()); println!("base {}",run());
 for hook in if std::env::var("N").is_ok() {vec![Hook::Fentry]} else {vec![Hook::Fentry,Hook::KprobeSession,Hook::KprobeMulti]}{
 for (n,keep) in [("aggregate",Keep::Aggregate),("longer",Keep::LongerThan(1_000_000)),("all",Keep::LongerThan(0))]{
  let pid=unsafe{libc::fork()};
  if pid==0 { std::thread::sleep(std::time::Duration::from_millis(300)); run(); println!("{hook:?} {n} {}",run()); std::process::exit(0) }
  let cfg=Config{keep,scope:Scope::All,hook,ring_bytes:1<<20};
  let mut s=match Session::start(&mut kernel,&fs,&cfg,&mut |_|{}){Ok(s)=>s,Err(e)=>{println!("{hook:?} {n} {e}");continue}};
  let mut st=0; unsafe{libc::waitpid(pid,&raw mut st,0)};
  let mut k=0; let mut last=None; s.calls().unwrap().drain(|c|{k+=1;last=Some(c)});
  s.stop();
  println!("   {:?} {:?} records {k} {last:?} verified {}",s.stats()[0].count,s.losses(),s.verified());
  let st=&s.stats()[0]; println!("   total {} self {} min {} max {}",st.total_ns,st.self_ns,st.min_ns,st.max_ns);
 }}
}
